'use strict';
// Libraries of others, loaded when something needs them.
//
// LIBRARY_SCRIPTS comes from the server: an address below the page's own and a hash each. The
// page's policy runs scripts of these hashes alone.

const LIBRARY_RETRY_MS = 10_000;
const libraryLoads = new Map(); // promises, by name
const libraryPolicy = window.trustedTypes?.createPolicy('jetflock-libraries', { createScriptURL: libraryUrl });

function libraryUrl(name) {
  return pageUrl(LIBRARY_SCRIPTS[name].address);
}

/** Done once it has run. What could not be loaded is tried again for whoever asks some seconds later. */
function loadLibrary(name) {
  if (!libraryLoads.has(name)) {
    const load = insertScript(name);
    load.catch(() => setTimeout(() => libraryLoads.delete(name), LIBRARY_RETRY_MS));
    libraryLoads.set(name, load);
  }
  return libraryLoads.get(name);
}

function insertScript(name) {
  return new Promise((resolve, reject) => {
    const { integrity } = LIBRARY_SCRIPTS[name];
    const script = el('script', { integrity, onload: resolve, onerror: () => reject(new Error(`${name} could not be loaded.`)) });
    script.src = libraryPolicy ? libraryPolicy.createScriptURL(name) : libraryUrl(name);
    document.head.append(script);
  });
}
