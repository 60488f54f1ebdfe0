// The change explorer: the last changes of a table, the history of a key, a transaction whole.
import { ask, byId, count, make, setText } from "./words.js";

const OPERATIONS = { c: "insert", u: "update", d: "delete", r: "read", t: "truncate" };
let asked = null;
let reread = null;

export function begin(operate) {
  byId("search").addEventListener("submit", (event) => { event.preventDefault(); look(null); });
  byId("search-more").addEventListener("click", () => look(asked.back));
  byId("search-table").addEventListener("change", () => { if (!byId("search-table").value) byId("search-key").value = ""; });
  byId("search-reread").addEventListener("click", () => operate("reread", reread.tables[0], reread));
}

export function offer(names) {
  const list = byId("search-table");
  const there = new Set([...list.options].map((option) => option.value));
  for (const name of names) if (!there.has(name)) list.append(make("option", { value: name, text: name }));
}

export function mayReread(may) {
  byId("search-reread").hidden = !(may && reread);
}

async function look(before) {
  const table = byId("search-table").value, key = byId("search-key").value.trim();
  const values = byId("search-values").checked;
  if (key && !table) { setText(byId("search-said"), "Choose a table: a search by key needs one."); return; }
  const query = new URLSearchParams();
  if (table) query.set("table", table);
  const parts = key ? key.split(",").map((part) => part.trim()) : [];
  for (const part of parts) query.append("key", part);
  if (before !== null) query.set("before", before);
  if (values) query.set("values", "true");
  setText(byId("search-said"), "Looking …");
  try {
    const found = await ask(`api/v1/changes?${query}`);
    if (before === null) clear();
    show(found.changes, values);
    asked = { back: found.looked_back_to };
    reread = parts.length ? { tables: [table], keys: [parts] } : null;
    const rows = byId("changes").tBodies[0].rows.length;
    const end = found.more ? `searched back to offset ${count(found.looked_back_to)}` : "the log has no more";
    setText(byId("search-said"), `${count(rows)} ${rows === 1 ? "change" : "changes"}, ${end}.`);
    byId("search-more").hidden = !found.more;
    document.dispatchEvent(new Event("looked"));
  } catch (error) {
    setText(byId("search-said"), error.sentence || "The daemon does not answer.");
  }
}

async function transaction(number) {
  const values = byId("search-values").checked;
  setText(byId("search-said"), "Looking …");
  try {
    const found = await ask(`api/v1/transactions/${number}${values ? "?values=true" : ""}`);
    clear();
    show(found.changes, values);
    const cut = found.truncated ? `, of which the first ${count(found.changes.length)} are shown` : "";
    const kind = found.kind === "read" ? "rows read by a backfill" : `transaction ${found.xid} of the source`;
    setText(byId("search-said"), `Transaction ${count(number)} of the log: ${kind}, ${count(found.rows)} rows${cut}, committed ${time(found.commit_ts)}, position ${found.position}.`);
    byId("search-more").hidden = true;
    reread = null;
    document.dispatchEvent(new Event("looked"));
  } catch (error) {
    setText(byId("search-said"), error.sentence || "The daemon does not answer.");
  }
}

function clear() {
  byId("changes").tBodies[0].replaceChildren();
}

function show(changes, values) {
  const body = byId("changes").tBodies[0];
  byId("changes").hidden = !(changes.length || body.rows.length);
  for (const change of changes) {
    body.append(make("tr", {},
      make("th", { scope: "row", text: count(change.offset) }),
      make("td", { text: time(change.commit_ts) }),
      make("td", { "data-name": "Transaction" }, make("button", { type: "button", class: "link", text: count(change.transaction), "aria-label": `Show transaction ${change.transaction} whole`, onclick: () => transaction(change.transaction) })),
      make("td", { text: OPERATIONS[change.op] || change.op }),
      make("td", { text: change.table }),
      make("td", {}, ...cells(change, values))));
  }
}

function cells(change, values) {
  if (!values) return [make("span", { class: "cell" }, make("i", { text: change.unchanged.length ? `unchanged: ${change.unchanged.join(", ")}` : "not asked for" }))];
  const found = Object.entries(change.values || {}).map(([name, value]) => cell(name, value));
  for (const name of change.unchanged) found.push(make("span", { class: "cell" }, make("b", { text: `${name} ` }), make("i", { text: "unchanged" })));
  for (const [name, value] of Object.entries(change.before || {})) found.push(cell(`${name} was`, value));
  return found;
}

function cell(name, value) {
  const shown = value === null ? make("i", { text: "NULL" }) : document.createTextNode(value);
  return make("span", { class: "cell" }, make("b", { text: `${name} ` }), shown);
}

function time(text) {
  return text.replace("T", " ").replace(/(\.\d{3})\d*/, "$1").replace("+00:00", "Z");
}
