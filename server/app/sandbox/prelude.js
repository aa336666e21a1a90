(function (host, now) {
  "use strict";
  class OperationOutcomeError extends Error {
    constructor(status, code, text, outcome) {
      super(String(text));
      this.name = "OperationOutcomeError";
      this.status = Number(status);
      this.code = String(code);
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
  return { fhir, OperationOutcomeError, fetch: (url, options) => call("fetch", { url: String(url), options }) };
})
