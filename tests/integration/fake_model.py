"""What the fake backend must say: computed here again, independently of the server."""

IM_START, IM_END = 257, 258
_M = (1 << 64) - 1


class FakeModel:
    def __init__(self, first_token=97, n_tokens=26):
        self.first, self.n = first_token, n_tokens

    def _next(self, h, seed):
        if seed is not None:
            h ^= (seed * 0xD1342543DE82EF95) & _M
        h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & _M
        h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & _M
        return self.first + (h ^ (h >> 31)) % self.n

    def tokens(self, prompt, n, seed=None, choice=0):
        """n ids after the prompt's ids. seed None: greedy."""
        if seed is not None:
            seed = (seed + choice * 0xA24BAED4963EE407) & _M
        h = 1469598103934665603
        for t in prompt:
            h = ((h ^ t) * 1099511628211) & _M
        out = []
        for _ in range(n):
            t = self._next(h, seed)
            out.append(t)
            h = ((h ^ t) * 1099511628211) & _M
        return out

    def text(self, prompt, n, seed=None, choice=0):
        """The same as text, for vocabularies whose generated ids are ASCII."""
        return bytes(self.tokens(ids(prompt), n, seed, choice)).decode("ascii")


def ids(prompt):
    """A text's ids: its bytes."""
    return list(prompt.encode()) if isinstance(prompt, str) else list(prompt)


def chat_ids(messages):
    """ChatML, as the fake backend's vocabulary has it."""
    out = []
    for m in messages:
        out += [IM_START] + ids(m["role"] + "\n" + m["content"]) + [IM_END] + ids("\n")
    return out + [IM_START] + ids("assistant\n")


def chars(text, n):
    """Text of n bytes that differs from call to call with other `text`."""
    return (text * (n // len(text) + 1))[:n]
