"""Room 06: a trained model becomes an HTTP service.

engine          continuous batching in a thread of its own
schema          what a request may be: validation, limits
answers         what an answer looks like, whole or streamed, in OpenAI's forms
openapi         the description of both for programs
streams         server-sent events: from the engine's thread to the event loop
auth            API key, CORS, allowed hosts, rate limit
connections     the listener: connection limits and timeouts
overload        requests refused before HTTP is parsed, while the queue is full
limits          every limit of a server, each also a command-line option
metrics         Prometheus metrics
app             the routes, and streams of server-sent events
server          start and stop: python -m helpers.serve
workers         several processes on one port

The page that a browser gets lies in page/.
"""
