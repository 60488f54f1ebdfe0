// The page of a fleet: asks its process every five seconds while it is looked at, and shows what has changed in place.
// All texts come from members: they become text, never markup, and a link leads to a web page or is no link.
import { ask, byId, clock, count, duration, make, Refused, setText, size } from "./words.js";
import { answered, begin, lost, signedOut, tone, welcome } from "./session.js";

const EVERY_MS = 5000, ROWS_MAX = 500;
const TONES = { silent: "bad", unknown: "bad", halted: "bad", waiting: "warn", paused: "warn", stopped: "warn", "merges only": "warn", other: "warn", standby: "good", capturing: "good" };
const LEVEL_TONES = { error: "bad", warning: "warn" };
const ATTENTION = "needs attention";
const rows = new Map();
const state = { found: null, chosen: "", ...inAddress() };

async function refresh() {
  if (document.hidden || state.busy) return;
  state.busy = true;
  try {
    state.found = await ask("api/v1/fleet");
    answered();
    show(state.found);
  } catch (error) {
    if (error instanceof Refused && error.code === 401) signedOut();
    else lost(error);
  } finally {
    state.busy = false;
  }
}

function show(found) {
  const { pipelines, counts, outages, caller } = found;
  welcome(caller);
  setText(byId("version"), `cdcflow ${found.version}`);
  showOutages(outages);
  showStates(pipelines, counts);
  showPipelines(pipelines, found.now);
  const bad = pipelines.filter((one) => one.level === "error").length, warned = pipelines.filter((one) => one.level === "warning").length;
  const [text, kind] = bad || outages.length ? [`${count(bad)} with errors`, "bad"] : warned ? [`${count(warned)} with warnings`, "warn"] : !found.read ? ["reading", ""] : ["all is well", "good"];
  tone(byId("state"), pipelines.length || outages.length ? text : "no pipelines", pipelines.length || outages.length ? kind : "");
  setText(byId("source"), `${count(pipelines.length)} pipelines, ${count(counts.capturing)} of them capturing`);
}

function showOutages(outages) {
  const list = byId("outages"), key = JSON.stringify(outages);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...outages.map((one) => make("li", { text: `Since ${clock(one.since, true)}: ${one.reason}. What is known of its pipelines is from before.` })));
}

function showStates(pipelines, counts) {
  const attention = pipelines.filter(needsAttention).length;
  const wanted = [["", pipelines.length, ""], [ATTENTION, attention, attention ? "bad" : ""], ...Object.keys(TONES).map((name) => [name, counts[name] || 0, TONES[name]])].filter(([name, number]) => name === "" || number || name === state.chosen);
  const place = byId("states"), key = JSON.stringify([wanted, state.chosen]);
  if (place.dataset.key === key) return;
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.state : null;
  place.dataset.key = key;
  place.replaceChildren(...wanted.map(([name, number, kind]) => make("button", { type: "button", class: kind === "good" ? "" : kind, "data-state": name, "aria-pressed": String(name === state.chosen), text: `${name || "all"} ${count(number)}`, onclick: () => choose(name) })));
  if (focused !== null) place.querySelector(`[data-state="${focused}"]`)?.focus();
}

function needsAttention(one) {
  return one.level === "error" || one.level === "warning";
}

function choose(name) {
  state.chosen = name;
  filtered();
}

function filtered() {
  const given = new URLSearchParams();
  if (state.chosen) given.set("state", state.chosen);
  if (byId("name").value) given.set("name", byId("name").value);
  history.replaceState(null, "", given.size ? `#${given}` : location.pathname);
  if (state.found) show(state.found);
}

function inAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  byId("name").value = given.get("name") || "";
  return { chosen: given.get("state") || "" };
}

function showPipelines(pipelines, now) {
  const name = byId("name").value.toLowerCase();
  const chosen = pipelines.filter((one) => one.name.toLowerCase().includes(name) && (!state.chosen || (state.chosen === ATTENTION ? needsAttention(one) : one.state === state.chosen)));
  const shown = chosen.slice(0, ROWS_MAX), names = new Set(shown.map((one) => one.name)), body = byId("pipelines").tBodies[0];
  for (const [known, row] of rows) if (!names.has(known)) { row.main.remove(); row.why.remove(); rows.delete(known); }
  shown.forEach((one, at) => {
    if (!rows.has(one.name)) rows.set(one.name, newRow(one.name));
    const row = rows.get(one.name);
    if (body.children[2 * at] !== row.main) { body.insertBefore(row.main, body.children[2 * at] || null); row.main.after(row.why); }
    fill(row, one, now);
  });
  const more = chosen.length - shown.length;
  setText(byId("none"), more ? `${count(more)} more: narrow the names down.` : shown.length ? "" : pipelines.length ? "No pipeline fits these filters." : state.found.read ? "No pipeline has published anything yet: set service.fleet in the settings of one." : "Reading the registers …");
}

function newRow(name) {
  const cell = (title) => make("td", { "data-name": title });
  const row = { name: make("span"), place: make("small"), tag: make("span", { class: "tag" }), heard: make("small"), lag: cell("Lag"), kept: cell("Source keeps"), fresh: cell("Fresh as of"), merged: cell("Merged"), verified: cell("Verified") };
  row.main = make("tr", { class: "row" }, make("th", { scope: "row" }, row.name, row.place), make("td", {}, row.tag, row.heard), row.lag, row.kept, row.fresh, row.merged, row.verified);
  row.text = make("p");
  row.button = make("button", { type: "button", class: "link", onclick: () => more(name, row) });
  row.list = make("ul", { hidden: true });
  row.why = make("tr", { class: "why" }, make("td", { colspan: 7 }, row.text, row.list));
  return row;
}

function fill(row, one, now) {
  const old = ["silent", "stopped", "halted"].includes(one.state);
  const key = JSON.stringify([one, old && Math.floor(now / 60)]);
  if (row.key === key) return;
  row.key = key;
  const link = one.page && /^https?:\/\//.test(one.page);
  row.name.replaceChildren(link ? make("a", { href: one.page, rel: "noreferrer", text: one.name }) : one.name);
  setText(row.place, [one.source, one.place, one.tables ? `${count(one.tables)} tables` : ""].filter(Boolean).join(" · "));
  setText(row.tag, one.state);
  row.tag.className = `tag ${LEVEL_TONES[one.level] || TONES[one.state] || ""}`;
  setText(row.heard, old && one.reported_at ? `since ${clock(one.reported_at, true)}` : "");
  for (const cell of [row.lag, row.kept, row.fresh, row.merged, row.verified]) cell.classList.toggle("old", old);
  cells(row.lag, one.lag_seconds === undefined ? "" : duration(one.lag_seconds), one.lag_bytes === undefined ? "" : size(one.lag_bytes));
  cells(row.kept, one.kept_bytes === undefined ? "" : size(one.kept_bytes), one.budget_used === undefined ? "" : `${Math.round(100 * one.budget_used)} % used`, one.budget_used);
  cells(row.fresh, one.fresh_as_of === undefined ? "" : clock(one.fresh_as_of, true), one.tables_not_fresh ? `${count(one.tables_not_fresh)} not proven` : "");
  cells(row.merged, one.merge_ended_at === undefined ? "" : clock(one.merge_ended_at, true), [one.merge_behind_rows ? `${count(one.merge_behind_rows)} rows behind` : "", one.merge_place || "", one.merge_state === "failing" ? "failing" : ""].filter(Boolean).join(" · "));
  cells(row.verified, one.verified_at === undefined ? "" : clock(one.verified_at, true), one.verified_at === undefined ? "" : `${count(one.tables_verified)} of ${count(one.tables)} tables`);
  row.why.hidden = !one.text;
  if (!one.text) return;
  row.text.className = one.level;
  row.text.replaceChildren(make("b", { text: one.level === "note" ? "" : `${one.level[0].toUpperCase()}${one.level.slice(1)}: ` }), one.text, ...(one.remedy ? [" ", one.remedy] : []), ...(one.more ? [" ", row.button] : []));
  setText(row.button, row.list.hidden ? `${one.more} more` : "less");
  row.button.setAttribute("aria-label", `${row.button.textContent}: findings of ${one.name}`);
}

function cells(cell, text, small, used) {
  const parts = [];
  if (used !== undefined) parts.push(make("meter", { min: 0, max: 1, low: 0.5, high: 0.8, optimum: 0, value: Math.min(used, 1), "aria-label": "Share of the log that the source may keep", "aria-valuetext": small }));
  cell.replaceChildren(...(text ? [text] : []), ...parts, ...(small ? [...(text ? [" "] : []), make("small", { text: small })] : []));
}

async function more(name, row) {
  if (row.list.hidden) {
    try {
      const found = await ask(`api/v1/fleet/${encodeURIComponent(name)}`);
      row.list.replaceChildren(...found.findings.slice(1).map((one) => make("li", { text: `${one.text}${one.remedy ? ` ${one.remedy}` : ""}` })));
    } catch {
      return;
    }
  }
  row.list.hidden = !row.list.hidden;
  row.key = "";
  if (state.found) show(state.found);
}

byId("name").addEventListener("input", filtered);
begin("cdcflow fleet", refresh);
await refresh();
setInterval(refresh, EVERY_MS);
