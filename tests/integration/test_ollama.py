"""The Ollama dialect against the fake backend, whose every token is known beforehand."""

import harness


class Errors(harness.SharedServer):
    options = ("--server.max_body_kb", 64)

    def test_each_dialect_has_its_own_shape(self):
        for method, path, status in (("GET", "/api/nothing", 404), ("POST", "/api/nothing", 404)):
            r = self.server.request(method, path)
            self.assertEqual(r.status, status)
            self.assertEqual(set(r.json), {"error"})
            self.assertIsInstance(r.json["error"], str)
        r = self.server.get("/v1/messages/nothing")
        self.assertEqual((r.status, r.json["type"]), (404, "error"))
        self.assertEqual(r.json["error"]["type"], "not_found_error")
        self.assertIsInstance(self.server.get("/v1/nothing").json["error"]["message"], str)

    def test_also_what_the_http_server_refuses_by_itself(self):
        body = b" " * (65 << 10)
        for path, want in (("/api/chat", lambda e: isinstance(e["error"], str)),
                           ("/v1/messages", lambda e: e["error"]["type"] == "request_too_large"),
                           ("/v1/chat/completions", lambda e: "param" in e["error"])):
            r = self.server.post(path, body)
            self.assertEqual(r.status, 413)
            self.assertTrue(want(r.json), r.json)
