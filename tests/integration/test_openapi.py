"""The OpenAPI document, as others read it."""

import os
import pathlib
import subprocess
import sys

import openapi_spec_validator

import harness


class Document(harness.SharedServer):
    options = ("--fake.eos_after", "40", "--model.context", "2048")

    def test_it_is_valid(self):
        r = self.server.get("/openapi.json")
        self.assertEqual(r.status, 200)
        self.assertEqual(r.json["openapi"], "3.1.0")
        openapi_spec_validator.validate(r.json)

    @harness.long_only
    @harness.limit(1800)
    def test_schemathesis_finds_nothing(self):
        """No 5xx, no status, type or body that the document does not have."""
        checks = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
                  "response_headers_conformance", "response_schema_conformance")
        program = pathlib.Path(sys.executable).parent / "schemathesis"
        done = subprocess.run(
            [program, "run", f"http://127.0.0.1:{self.server.port}/openapi.json", "--checks",
             ",".join(checks), "--max-examples", os.environ.get("GAMASOT_TEST_EXAMPLES", "200"),
             "--exclude-path", "/v1/live",  # a stream without end
             "--exclude-path", "/api/pull",  # whatever its name may be would be asked for elsewhere
             "--exclude-path", "/v1/background/pause",  # embeddings would wait for ever
             "--warnings", "off",  # that made-up ids are 404 is right
             "--seed", str(harness.seed(1)), "--phases", "examples,coverage,fuzzing", "--no-color",
             "--request-timeout", str(60 * harness.SLOWNESS)],
            cwd=harness.TMP, capture_output=True, env=harness.clean_env())
        said = done.stdout.decode(errors="replace")
        self.assertEqual(done.returncode, 0, said[-8000:] + done.stderr.decode()[-2000:])
        self.assertIn("No issues found", said)
