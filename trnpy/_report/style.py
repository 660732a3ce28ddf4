"""How the HTML report looks, and the few lines of script that sort its tables."""

STYLE = """
:root { --paper: #fcfcfb; --card: #ffffff; --ink: #1d2329; --muted: #66707a; --rule: #e3e6e8;
  --host: #3f6fb0; --host-2: #8fb0da; --device: #e0801f; --device-2: #f3bd85; --other: #cdd3d8; --unpriced: #c3d3e8; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181b; --card: #1c2024; --ink: #e4e7ea; --muted: #98a2ab;
  --rule: #2f353a; --host: #6f9fe0; --host-2: #40608c; --device: #f19a3e; --device-2: #8d5a23; --other: #4a525a;
  --unpriced: #34475f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 56px; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .88em; }
small, .lead, .title, footer, .legend, section > p { color: var(--muted); }
section > p { font-size: 13px; margin: -8px 0 14px; } .timeline + p { margin: 6px 0 0; }
.title { margin: 0 0 28px; font-size: 13px; overflow-wrap: anywhere; }
.title b { color: var(--ink); margin-right: .6em; }
h1 { font-size: clamp(26px, 4.6vw, 44px); line-height: 1.12; letter-spacing: -.02em; font-weight: 650; margin: 0;
  text-wrap: balance; }
h1 em { font-style: normal; color: var(--device); }
h1 small { font-size: 13px; font-weight: 500; letter-spacing: 0; vertical-align: middle; white-space: nowrap;
  border: 1px solid var(--rule); border-radius: 99px; padding: 3px 10px; }
.lead { font-size: 16px; margin: 12px 0 0; max-width: 46em; }
section { margin-top: 44px; }
h2 { font-size: 19px; font-weight: 650; letter-spacing: -.01em; margin: 0 0 14px; }
h3 { font-size: 15px; font-weight: 600; margin: 0 0 5px; }
h3 small { font-weight: 400; font-size: 13px; margin-left: .5em; }
h3 small b { color: var(--ink); font-weight: 600; }
.whatif { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 24px;
  margin-top: 30px; }
.row { display: grid; grid-template-columns: 9.5em minmax(0, 1fr) 15em; gap: 14px; align-items: center; }
.row .name { text-align: right; color: var(--muted); font-size: 13px; }
.row .value { font-size: 13px; color: var(--muted); white-space: nowrap; }
.row .value b { color: var(--ink); font-size: 15px; font-weight: 600; white-space: nowrap; }
.bar { display: flex; height: 14px; }
.bar i { min-width: 2px; }
.bar i:first-child { border-radius: 3px 0 0 3px; }
.bar i:last-child { border-radius: 0 3px 3px 0; }
.bar i:only-child { border-radius: 3px; }
.whatif .row { margin-bottom: 12px; }
.whatif .bar { height: 34px; }
.whatif .row .value b { font-size: 20px; }
.function { margin-bottom: 20px; }
.function .row { grid-template-columns: 3.2em minmax(0, 1fr) 18.5em; margin-bottom: 3px; }
.function .name { text-align: left; } .function .value { white-space: normal; line-height: 1.2; }
.other { background: var(--other); } .unpriced { background: var(--unpriced); }
.host { background: var(--host); } .device { background: var(--device); }
.host.hatched { background: repeating-linear-gradient(135deg, var(--host) 0 4px, var(--host-2) 4px 8px); }
.device.hatched { background: repeating-linear-gradient(135deg, var(--device) 0 4px, var(--device-2) 4px 8px); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13px; margin: 16px 0 0; }
.legend i { display: inline-block; width: 14px; height: 14px; border-radius: 3px; margin-right: 6px;
  vertical-align: -2px; }
.legend i.half { width: 12px; border-radius: 0; margin-right: 0; } .legend i.half + i.half { margin-right: 6px; }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: 20px; margin: 24px 0 0; padding-top: 20px;
  border-top: 1px solid var(--rule); }
.facts div { display: flex; flex-direction: column; }
.facts dd { margin: 0; font-size: 24px; font-weight: 650; letter-spacing: -.01em; }
.facts dt { color: var(--muted); font-size: 13px; line-height: 1.35; }
.notice { border-left: 3px solid var(--device); padding: 2px 0 2px 12px; margin: 12px 0 0; overflow-wrap: anywhere; }
.timeline { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: 12px; }
.lanes span { display: flex; height: 40px; align-items: center; color: var(--muted); font-size: 13px; }
.track { position: relative; }
.empty { position: absolute; left: 12px; bottom: 22px; height: 40px; display: flex; align-items: center;
  color: var(--muted); font-size: 13px; }
.track svg { display: block; width: 100%; background: var(--card); border: 1px solid var(--rule); border-radius: 6px; }
.ranks .lanes span { height: 22px; } .waits { background: var(--other); } .moves { background: var(--host-2); }
.curves { width: 100%; max-width: 820px; } .curves text { font-size: 12px; fill: var(--muted); }
.curves .rule, .curves .frame { fill: none; stroke: var(--rule); }
rect.waits { fill: var(--other); } rect.moves { fill: var(--host-2); }
rect.host { fill: var(--host); } rect.device { fill: var(--device); } rect.modelled { fill: url(#hatch); }
rect.d1 { fill: var(--device); } rect.d2 { fill: var(--device-2); } svg > rect:hover { fill: var(--ink); }
.ticks { position: relative; height: 22px; font-size: 12px; color: var(--muted); }
.ticks span { position: absolute; top: 4px; padding-left: 4px; border-left: 1px solid var(--rule);
  white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; line-height: 1.35; }
th { text-align: left; white-space: nowrap; vertical-align: bottom; color: var(--muted); font-weight: 500;
  padding: 6px; }
td { padding: 8px 6px; border-top: 1px solid var(--rule); vertical-align: top; }
th:first-child, td:first-child { padding-left: 0; } th:last-child, td:last-child { padding-right: 0; }
.n { text-align: right; white-space: nowrap; }
.share { display: block; height: 3px; margin: 3px 0 0 auto; background: var(--host); border-radius: 2px; }
td.where { overflow-wrap: break-word; min-width: 14em; max-width: 24em; }
.where span { display: block; color: var(--muted); font-size: 12px; }
.why span { display: block; color: var(--muted); font-size: 12px; overflow-wrap: anywhere; }
td b { font-weight: 600; }
th[tabindex] { cursor: pointer; } th[tabindex]:hover { color: var(--ink); }
th[aria-sort=descending]::after { content: " \\2193"; } th[aria-sort=ascending]::after { content: " \\2191"; }
footer { margin-top: 48px; padding-top: 18px; border-top: 1px solid var(--rule); font-size: 13px; max-width: 68em; }
@media (max-width: 720px) {
  main { padding: 24px 16px 40px; } .whatif { padding: 16px; } section { margin-top: 34px; }
  .row, .function .row { grid-template-columns: auto minmax(0, 1fr); gap: 2px 10px; margin-bottom: 8px; }
  .row .name { text-align: left; white-space: nowrap; } .row .value { text-align: right; white-space: normal; }
  .row .bar { grid-row: 2; grid-column: 1 / -1; } .row .value { grid-column: 2; }
  .facts { grid-template-columns: 1fr 1fr; } h3 small { display: block; margin: 0; }
  .timeline { gap: 6px; } .lanes span { font-size: 11px; line-height: 1.2; max-width: 5.2em; }
  .ticks span:nth-child(even) { display: none; }
  thead { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: 12px 0; border-top: 1px solid var(--rule); }
  #lines tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 12px; }
  td.where, td.why { grid-column: 1 / -1; max-width: none; }
  td, td:first-child, td:last-child { border: 0; padding: 2px 0; text-align: left; }
  td.n { text-align: left; white-space: normal; }
  td[data-k]::before { content: attr(data-k) ": "; color: var(--muted); }
  .share { display: none; } .why span { display: inline; }
}
@media print { section { break-inside: avoid; } }
"""

# Tables come sorted by time; without scripts that is how they stay.
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, i) => row.cells[i].dataset.v ?? row.cells[i].textContent;
  heads.forEach((head, i) => {
    const sort = () => {
      const down = head.getAttribute("aria-sort") !== "descending", sign = down ? -1 : 1;
      heads.forEach(h => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => head.className ? a - b : a.localeCompare(b, undefined, {numeric: true});
      body.append(...[...body.rows].sort((a, b) => sign * order(value(a, i), value(b, i))));
    };
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
"""
