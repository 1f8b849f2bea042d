"""The HTTP side of the proxy: listening, connections, requests and their bodies, routing and
authentication.
"""
