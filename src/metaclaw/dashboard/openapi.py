"""The description of our own API, made from the table of routes so that it cannot drift."""

import re
from collections.abc import Sequence
from typing import Any

from metaclaw.dashboard.routes import Route

_ERROR = {"description": "What went wrong", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.is_page:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "MetaClaw", "version": version, "description": "What people and tools read; every route needs the key."},
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
                    },
                }
            },
        },
        "security": [{"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    inner = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", route.path)
    ]
    query = [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.parameters]
    body = {"requestBody": _request_body(route)} if route.fields else {}
    return {
        "summary": route.summary,
        "parameters": inner + query,
        **body,
        "responses": {"200": {"description": route.summary}, "default": _ERROR},
    }


def _request_body(route: Route) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {field.name: field.schema for field in route.fields},
        "required": [field.name for field in route.fields if field.is_required],
        "additionalProperties": False,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}
