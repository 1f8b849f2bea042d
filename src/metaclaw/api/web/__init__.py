"""The pages for a browser, under `/ui`."""
