"""The OpenAPI document, as others read it."""

import openapi_spec_validator

import harness


class Document(harness.SharedServer):
    def test_it_is_valid(self):
        r = self.server.get("/openapi.json")
        self.assertEqual(r.status, 200)
        self.assertEqual(r.json["openapi"], "3.1.0")
        openapi_spec_validator.validate(r.json)
