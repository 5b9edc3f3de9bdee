"""Room 06: a writer becomes an HTTP service.

engine          continuous batching in a thread of its own
schema          requests and answers: validation, OpenAPI, OpenAI's forms
auth            API key, CORS, allowed hosts, rate limit
connections     the listener: connection limits and timeouts
metrics         Prometheus metrics
app             the routes
server          start, stop, several processes: python -m helpers.serve
"""
