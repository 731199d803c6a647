"""Makes wrong KV-cache reuse visible: warm = cold = oracle, to the last bit.

The one name that an installation brings. `warmcold.engine` is the subject, `warmcold.harness` the judge (an adapter for
another engine imports from there alone), `warmcold.mutations` the falsifier, `warmcold.fixtures` the exact models. In the
repository they are the folders at its top, of which this package holds links. Nothing heavy is imported before it is used.
"""

__all__ = ["engine", "fixtures", "harness", "mutations"]
