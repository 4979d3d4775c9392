'use strict';
// The requests that this frontend has answered lately, and the workers that each one has been on.

const LEFT_BECAUSE = {
  released: 'handed over',
  engine_crashed: 'its engine crashed',
  died: 'it died',
  overtaken: 'it was silent',
};
const FEW_REQUESTS = 12;

/** Worker chips joined by arrows that say why the request went on. */
function requestPath(hops, onMark) {
  const parts = hops.flatMap((hop, place) => {
    const mark = (id) => () => onMark(id);
    const chip = el('span', { class: 'cl-chip', tabindex: 0, 'data-worker': hop.worker, onmouseenter: mark(hop.worker), onmouseleave: mark(null), onfocus: mark(hop.worker), onblur: mark(null) }, workerLabel(hop.worker));
    if (place === hops.length - 1) return [chip];
    const why = LEFT_BECAUSE[hop.left] ?? hop.left ?? '';
    return [chip, el('span', { class: 'cl-arrow' }, el('small', {}, why), ' → ')];
  });
  return el('span', { class: 'cl-path' }, ...parts);
}

class RequestTable {
  constructor(onMark) {
    this.onMark = onMark;
    this.showsAll = false;
    this.movedOnly = el('input', { type: 'checkbox', id: 'moved-only', onchange: () => this.show(this.cluster) });
    this.rows = new Map(); // by id: {text, row}
    this.body = el('tbody');
    this.more = el('button', { class: 'cl-more', onclick: () => this.#toggle() });
    this.empty = el('p', { class: 'cl-empty' }, 'No requests yet. Ask something in the Chat tab, or start a stream above.');
    const titles = ['Time', 'Request', 'Outcome', 'Prompt', 'Output', 'First token', 'Total', 'Path'];
    const head = el('thead', {}, el('tr', {}, ...titles.map((title) => el('th', { scope: 'col' }, title))));
    this.table = el('table', {}, head, this.body);
    this.root = el('section', { class: 'cl-card', 'aria-label': 'Recent requests' }, el('header', {}, el('h2', {}, 'Recent requests'), el('label', { for: 'moved-only' }, this.movedOnly, ' Only those that moved')), el('div', { class: 'cl-scroll' }, this.table), this.empty, this.more);
  }

  show(cluster) {
    this.cluster = cluster;
    const all = Object.entries(cluster.requests)
      .filter(([, request]) => !this.movedOnly.checked || RequestTable.#isMoved(request))
      .sort(([, a], [, b]) => b.arrived_at - a.arrived_at);
    const shown = this.showsAll ? all : all.slice(0, FEW_REQUESTS);
    const ids = new Set(shown.map(([id]) => id));
    for (const id of this.rows.keys()) if (!ids.has(id)) this.rows.delete(id);
    const rows = shown.map(([id, request]) => this.#row(id, request));
    const isSame = rows.length === this.body.children.length && rows.every((row, place) => this.body.children[place] === row);
    if (!isSame) this.body.replaceChildren(...rows);
    this.table.hidden = !all.length;
    this.empty.hidden = all.length > 0;
    this.more.hidden = all.length <= FEW_REQUESTS;
    this.more.textContent = this.showsAll ? 'Show fewer' : `Show all ${all.length}`;
  }

  #toggle() {
    this.showsAll = !this.showsAll;
    this.show(this.cluster);
  }

  /** Made again only when something is different: else the focus would be lost every second. */
  #row(id, request) {
    const text = JSON.stringify(request);
    const known = this.rows.get(id);
    if (known?.text === text) return known.row;
    const row = this.#made(id, request);
    known?.row.replaceWith(row);
    this.rows.set(id, { text, row });
    return row;
  }

  #made(id, request) {
    const paths = request.paths.filter((hops) => hops.length);
    const cached = request.num_cached_tokens ? el('small', {}, ` ${request.num_cached_tokens} cached`) : null;
    return el(
      'tr',
      { class: RequestTable.#isMoved(request) ? 'is-moved' : '' },
      el('td', {}, new Date(request.arrived_at * 1000).toLocaleTimeString()),
      el('td', {}, el('button', { type: 'button', class: 'chip is-button cl-id', 'aria-label': `${id.slice(0, 8)}, copy the id`, onclick: () => copyId(id) }, id.slice(0, 8)), el('small', {}, ` ${request.route}`), el('small', { class: 'cl-model' }, request.model), request.tenant ? el('small', { class: 'cl-model' }, request.tenant) : null),
      el('td', {}, RequestTable.#outcome(request)),
      el('td', {}, request.num_prompt_tokens, cached),
      el('td', {}, request.num_output_tokens),
      el('td', {}, RequestTable.#time(request.ttft_ms)),
      el('td', {}, RequestTable.#time(request.e2e_ms)),
      el('td', {}, paths.length ? paths.map((hops) => requestPath(hops, this.onMark)) : el('small', {}, request.is_running ? 'waiting' : '–')),
    );
  }

  static #isMoved({ paths }) {
    return paths.some((hops) => hops.length > 1);
  }

  static #outcome({ is_running: isRunning, status, finish }) {
    if (isRunning) return el('span', { class: 'cl-outcome is-running' }, 'running');
    const kind = status < 400 ? 'is-good' : 'is-bad';
    return el('span', { class: `cl-outcome ${kind}` }, status < 400 ? finish : `${status} ${finish}`);
  }

  static #time(ms) {
    if (ms === undefined) return '–';
    return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
  }
}
