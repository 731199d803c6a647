"""The judge. An adapter for another engine needs `warmcold.harness.contract` alone."""
