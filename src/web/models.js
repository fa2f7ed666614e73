/* What the server can answer with. */
import {getIfThere} from "./api.js";
import {$, bytes, h, has, keyed, num, onChange, t} from "./base.js";
import {live, on} from "./live.js";

let listed = null, loaded = null;

const bare = (name) => (name ?? "").replace(/:latest$/, "");

/* Far in the future, or before the beginning: it stays. */
function until(text) {
  const at = Date.parse(text ?? "");
  if (!Number.isFinite(at) || at - Date.now() > 365 * 86_400_000 || at < 0) return t("models.always");
  return new Intl.DateTimeFormat(document.documentElement.lang, {timeStyle: "short", dateStyle: "short"}).format(at);
}

function factsOf(m, name) {
  const ps = loaded?.models?.find((x) => bare(x.name ?? x.model) === name);
  const told = live.hello?.models?.find((x) => x.name === name);
  const rows = [];
  const row = (key, value) => { if (value) rows.push([t(key), value]); };
  const kind = told?.kind ?? m.kind;
  row("col.state", m.state ?? m.status);
  row("models.kind", undefined);
  if (kind && has(`models.kind.${kind}`)) rows.push([t("nav.models"), t(`models.kind.${kind}`)]);
  const context = m.max_model_len ?? told?.context;
  row("models.context", context > 0 && t("models.tokens", {n: num(context)}));
  row("models.params", ps?.details?.parameter_size);
  row("models.format", ps?.details?.quantization_level);
  row("models.size", ps?.size > 0 && bytes(ps.size));
  row("models.kv", told?.kv_blocks > 0 && t("models.blocks", {n: num(told.kv_blocks)}));
  row("models.until", ps && until(ps.expires_at));
  return rows;
}

function fill() {
  const models = listed?.data ?? [];
  $("#models-none").hidden = models.length > 0;
  keyed($("#model-cards"), models, (m) => m.id, () => h("article", {class: "card"}), (el, m) => {
    el.replaceChildren(h("h3", {}, m.id), h("dl", {class: "facts"},
      ...factsOf(m, bare(m.id)).flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, String(v))])));
  });
}

async function read() {
  try {
    [listed, loaded] = await Promise.all([getIfThere("/v1/models"), getIfThere("/api/ps")]);
    fill();
  } catch { /* the link at the top says that the server is away */ }
}

export function startModels() {
  let timer = null;
  for (const event of ["hello", "models"])
    on(event, () => { if (!$("#view-models").hidden) read(); });
  onChange("language", fill);
  return {
    shown() { read(); timer = setInterval(read, 5000); },
    hidden() { clearInterval(timer); },
  };
}
