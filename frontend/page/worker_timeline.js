'use strict';
// One row a worker: the states of its last five minutes, what it does now, and what can be done to it.

const BAND_HEIGHT = 10;
const LEAST_BAND_S = 1; // what was shorter is drawn so long
const LEAST_LOAD = 0.14; // of a band: what one request of many slots is drawn as, to be seen
const TIMELINE_TICKS = ['5 min ago', '4', '3', '2', '1', 'now'];

/** `worker-3f2a91` of `worker-3f2a91c5d7e2`: enough to tell a few apart. */
function workerLabel(id) {
  return id.replace(/^(.*-[0-9a-f]{6})[0-9a-f]+$/, '$1');
}

function agoText(s) {
  if (s < 60) return `${Math.max(0, Math.round(s))} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

/** A worker's GPU, in which formats it computes and keeps keys and values, and its memory: only operators are told. */
function gpuText({ name, dtype, kv_dtype: kvDtype, free_bytes: free, total_bytes: total }) {
  const gib = (bytes) => (bytes / 2 ** 30).toFixed(1);
  return `${name}, ${dtype}, KV ${kvDtype}, ${gib(free)} of ${gib(total)} GiB free`;
}

class WorkerRow {
  constructor(id, orders) {
    this.id = id;
    this.orders = orders;
    this.state = el('span', { class: 'cl-state' });
    this.facts = el('span', { class: 'cl-facts' });
    this.place = el('small', { class: 'cl-place' });
    this.remark = el('small', { class: 'cl-place' });
    this.bands = svgEl('g');
    this.load = svgEl('path', { class: 'cl-load' });
    const viewBox = `0 0 ${HISTORY_S} ${BAND_HEIGHT}`;
    const svg = svgEl('svg', { class: 'cl-band', viewBox, preserveAspectRatio: 'none', 'aria-hidden': 'true' }, this.bands, this.load);
    this.cross = el('span', { class: 'cl-cross', 'aria-hidden': 'true' }, '×');
    this.buttons = el('span', { class: 'cl-buttons' }, this.#button('drain', 'Drain'), this.#button('kill', 'Kill'));
    this.root = el(
      'li',
      { class: 'cl-row', 'data-worker': id },
      el('span', { class: 'cl-who' }, el('button', { type: 'button', class: 'chip is-button cl-name', 'aria-label': `${workerLabel(id)}, copy the id`, onclick: () => copyId(id) }, workerLabel(id)), this.state),
      el('span', { class: 'cl-lane' }, svg, this.cross),
      el('span', { class: 'cl-what' }, this.facts, this.place, this.remark),
      this.buttons,
    );
  }

  show(life, worker, load, cluster, now) {
    const state = life.isGone ? 'gone' : life.bands.at(-1).state;
    this.root.dataset.state = state;
    this.root.style.opacity = life.isGone ? Math.max(0.35, 0.8 - (now - life.goneAt) / HISTORY_S) : '';
    this.state.textContent = state;
    this.#showBands(life, now);
    this.#showLoad(load ?? [], now);
    this.cross.hidden = !life.isGone;
    this.cross.style.left = `${Math.max(0, 100 * (1 - (now - (life.goneAt ?? now)) / HISTORY_S))}%`;
    this.facts.textContent = life.isGone ? this.#end(life, now) : this.#facts(worker, now);
    this.place.textContent = life.isGone || !worker ? '' : WorkerRow.#place(worker, now);
    this.remark.textContent = life.isGone || !worker ? '' : (worker.remark ?? '');
    const canOrder = Boolean(cluster.admin_url) && !life.isGone && worker;
    this.buttons.hidden = !canOrder;
    this.buttons.firstChild.disabled = state === 'draining';
  }

  #facts(worker, now) {
    if (!worker) return 'the process is starting';
    if (worker.state === 'loading') return `${worker.phase || 'starting'}, ${Math.round((worker.progress ?? 0) * 100)} %`;
    const parts = [`${worker.num_running} of ${worker.max_running} slots`, `KV ${shareText(worker.kv_cache_usage)}`];
    if (worker.tokens_per_s !== undefined) parts.push(`${Math.round(worker.tokens_per_s)} tokens/s`);
    if (worker.role) parts.unshift(worker.role);
    return parts.join(' · ');
  }

  static #place(worker, now) {
    const machine = worker.host ? `${worker.host}, process ${worker.pid} · ` : '';
    const gpu = worker.gpu ? `${gpuText(worker.gpu)} · ` : '';
    const weights = worker.weights ? `, ${worker.weights}` : '';
    return `${worker.model}${weights} · ${machine}${gpu}up ${agoText(now - worker.started_at)}`;
  }

  #end(life, now) {
    return `gone ${agoText(now - life.goneAt)} ago${life.detail ? `, ${life.detail}` : ''}`;
  }

  #showBands(life, now) {
    const x = (at) => Math.max(0, HISTORY_S - (now - at));
    const rects = life.bands.map(({ state, from, to }) =>
      svgEl('rect', { class: `cl-is-${state}`, x: x(from), y: 0, width: Math.max(LEAST_BAND_S, x(to) - x(from)), height: BAND_HEIGHT }),
    );
    this.bands.replaceChildren(...rects);
  }

  /** How many of the slots were in use, inside the band. */
  #showLoad(load, now) {
    const x = (at) => (HISTORY_S - (now - at)).toFixed(1);
    const points = load.map(({ at, share }) => `${x(at)} ${(BAND_HEIGHT * (1 - (share && Math.max(share, LEAST_LOAD)))).toFixed(2)}`);
    const d = load.length ? `M${x(load[0].at)} ${BAND_HEIGHT}L${points.join('L')}L${x(load.at(-1).at)} ${BAND_HEIGHT}Z` : '';
    this.load.setAttribute('d', d);
  }

  /** Asks once more, in place: both end a process. */
  #button(verb, label) {
    let timer = null;
    const button = el('button', { class: `cl-order cl-${verb}`, 'aria-label': `${label} ${workerLabel(this.id)}` }, label);
    const disarm = () => {
      clearTimeout(timer);
      timer = null;
      button.textContent = label;
      button.classList.remove('is-armed');
    };
    button.addEventListener('blur', disarm);
    button.addEventListener('click', () => {
      if (timer === null) {
        button.textContent = `${label}?`;
        button.classList.add('is-armed');
        timer = setTimeout(disarm, 4_000);
      } else {
        disarm();
        this.orders.give(verb, async () => this.id);
      }
    });
    return button;
  }
}

class WorkerTimeline {
  constructor(orders) {
    this.orders = orders;
    this.rows = new Map(); // by worker
    this.states = new Map();
    this.list = el('ul', { class: 'cl-rows' });
    this.empty = el('p', { class: 'cl-empty' }, 'No workers are running. Requests wait in the queue until one starts.');
    this.legend = el('p', { class: 'cl-legend', 'aria-hidden': 'true' });
    const axis = el('div', { class: 'cl-axis', 'aria-hidden': 'true' }, ...TIMELINE_TICKS.map((text) => el('span', {}, text)));
    this.news = el('p', { class: 'cl-news', role: 'status' });
    this.root = el('section', { class: 'cl-card', 'aria-label': 'Workers' }, el('header', {}, el('h2', {}, 'Workers'), this.legend), axis, this.list, this.empty, this.news);
  }

  show(cluster, history, now) {
    const lives = workerLives(cluster, now);
    const ids = new Set(lives.map((life) => life.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.root.remove();
      this.rows.delete(id);
    }
    lives.forEach((life, place) => {
      const row = this.rows.get(life.id) ?? this.#add(life.id);
      if (this.list.children[place] !== row.root) this.list.insertBefore(row.root, this.list.children[place] ?? null);
      row.show(life, cluster.workers[life.id], history.loads.get(life.id), cluster, now);
    });
    this.empty.hidden = lives.some((life) => !life.isGone);
    this.#showLegend(lives);
    this.#tellChanges(lives);
  }

  /** Shows which row a worker's name elsewhere means. */
  mark(id) {
    for (const [each, row] of this.rows) row.root.classList.toggle('is-marked', each === id);
  }

  #add(id) {
    const row = new WorkerRow(id, this.orders);
    this.rows.set(id, row);
    return row;
  }

  #showLegend(lives) {
    const seen = new Set(['loading', 'ready', 'draining', ...lives.flatMap((life) => life.bands.map(({ state }) => state))]);
    const names = CLUSTER_STATES.filter((state) => seen.has(state));
    if (this.legend.dataset.names === String(names)) return;
    this.legend.dataset.names = names;
    const keys = names.map((state) => el('span', {}, svgEl('svg', { viewBox: '0 0 10 10' }, svgEl('rect', { class: `cl-is-${state}`, width: 10, height: 10, rx: 2 })), state));
    this.legend.replaceChildren(...keys, el('span', {}, el('b', {}, '×'), 'gone'));
  }

  /** For those who do not see the bands. */
  #tellChanges(lives) {
    const states = new Map(lives.map((life) => [life.id, life.isGone ? 'gone' : life.bands.at(-1).state]));
    const news = [...states].filter(([id, state]) => this.states.size && this.states.get(id) !== state);
    if (news.length) this.news.textContent = news.map(([id, state]) => `${workerLabel(id)} is ${state}`).join(', ');
    this.states = states;
  }
}
