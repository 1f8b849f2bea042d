"""The side-by-side proxy benchmark: our proxy, a bare reverse proxy and other Python proxies before
one cheap provider.
"""
