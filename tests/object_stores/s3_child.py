"""An S3 server on a free port of the loopback: prints the port, ends when its standard input does."""

import logging
import sys

from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler

WSGIRequestHandler.disable_nagle_algorithm = (
    True  # a kernel holds back the second part of an answer for 40 ms
)
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
