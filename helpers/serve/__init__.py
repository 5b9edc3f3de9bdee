"""Room 06: a trained model becomes an HTTP service.

engine    continuous batching in a thread of its own
schema    what a request may be: validation, limits
answers   what an answer looks like, whole or streamed, in OpenAI's forms; OpenAPI
auth      API key, CORS, allowed hosts, rate limit
limits    every limit of a server, each also a command-line option
metrics   Prometheus metrics
app       the routes, and streams of server-sent events
static    the page filled in, or written as a folder that needs no server
server    start and stop: python -m helpers.serve

The page that a browser gets lies in page/. Crowds and slow readers are the work of a proxy: examples/nginx.conf.
"""
