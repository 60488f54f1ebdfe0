"""A read-only MCP server over the HTTP API of a cdcflow daemon."""

from cdcflow_mcp.api import Api, ApiError
from cdcflow_mcp.server import mcp_server

__all__ = ["Api", "ApiError", "mcp_server"]
