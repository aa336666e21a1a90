(function (host, now) {
  "use strict";
  class OperationOutcomeError extends Error {
    constructor(status, code, text, outcome) {
      super(text === undefined ? "" : String(text));
      this.name = "OperationOutcomeError";
      this.status = Number(status);
      this.code = code === undefined ? "" : String(code);
      this.outcome = outcome || {
        resourceType: "OperationOutcome",
        issue: [{ severity: "error", code: this.code, diagnostics: this.message }],
      };
    }
  }
  const call = (name, args) => host(name, args, OperationOutcomeError);
  const fhir = Object.freeze({
    read: (type, id) => call("read", { type, id }),
    search: (type, params) => call("search", { type, params }),
    create: (resource) => call("create", { resource }),
    update: (resource) => call("update", { resource }),
    patch: (type, id, patch) => call("patch", { type, id, patch }),
    delete: (type, id) => call("delete", { type, id }),
    transaction: (bundle) => call("transaction", { bundle }),
    operation: (path, options) => call("operation", { path, options }),
  });
  const parse = JSON.parse;
  const fetch = async (url, options) => {
    const { method, headers, body } = options || {};
    const r = await call("fetch", { url: String(url), options: { method, headers, body: body == null ? undefined : String(body) } });
    return Object.freeze({
      status: r.status,
      ok: r.status >= 200 && r.status < 300,
      url: r.url,
      headers: Object.freeze({ get: (name) => { const v = r.headers[String(name).toLowerCase()]; return v === undefined ? null : v; } }),
      text: async () => r.body,
      json: async () => parse(r.body),
    });
  };
  return { fhir, OperationOutcomeError, fetch };
})
