package app

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"kiln/gen/db"
	"kiln/server/outcome"
	"kiln/server/web"
)

func sendJSON(w http.ResponseWriter, r *http.Request, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	web.ExchangeOf(w).Send(r, status, "application/json; charset=utf-8", b, true)
	return nil
}

// readJSON reads a body of at most 1 MiB.
func readJSON(w http.ResponseWriter, r *http.Request, into any, expected string) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return outcome.New(outcome.CodeTooLong, "the body cannot be read, or is longer than 1 MiB")
	}
	if err := json.Unmarshal(b, into); err != nil {
		return outcome.New(outcome.CodeStructure, "the body is not %s: %s", expected, outcome.JSONProblem(err))
	}
	return nil
}

// appOfRequest is the name of the App of a path. It fails with not-found.
func (p *Platform) appOfRequest(r *http.Request) (id, name string, err error) {
	id = r.PathValue("id")
	v, err := p.Store.Read(r.Context(), "App", id)
	if err != nil {
		return id, "", err
	}
	var a struct{ Name string }
	return id, a.Name, json.Unmarshal(v.Body, &a)
}

// grants is an App's grant as it is shown.
type grants struct {
	App    string   `json:"app"`
	Client string   `json:"client"`
	Scopes []string `json:"scopes"`
}

func (p *Platform) showGrants(w http.ResponseWriter, r *http.Request) error {
	id, _, err := p.appOfRequest(r)
	if err != nil {
		return err
	}
	if p.Clients == nil {
		return errNoClients()
	}
	scopes, err := p.Clients.Scopes(r.Context(), id)
	if err != nil {
		return err
	}
	return sendJSON(w, r, http.StatusOK, grants{id, clientPrefix + id, append([]string{}, strings.Fields(scopes)...)})
}

func errNoClients() error {
	return outcome.NotSupported("Apps have clients of their own with authorization alone: auth.enabled is off, and Apps run as everybody does")
}

// putGrants gives the App's own client scopes, in place of those that it had.
func (p *Platform) putGrants(w http.ResponseWriter, r *http.Request) error {
	id, name, err := p.appOfRequest(r)
	if err != nil {
		return err
	}
	if p.Clients == nil {
		return errNoClients()
	}
	var in struct {
		Scopes *[]string `json:"scopes"`
	}
	if err := readJSON(w, r, &in, `{"scopes": ["system/…"]}`); err != nil {
		return err
	}
	if in.Scopes == nil {
		return outcome.New(outcome.CodeRequired, `expected {"scopes": ["system/…"]}`)
	}
	var list []string
	for _, text := range *in.Scopes {
		list = append(list, strings.Fields(text)...)
	}
	if err := checkScopes(list); err != nil {
		return err
	}
	if err := p.Clients.Grant(r.Context(), id, name, list); err != nil {
		return err
	}
	return p.showGrants(w, r)
}

// listSecrets names the secrets of an App, without their values.
func (p *Platform) listSecrets(w http.ResponseWriter, r *http.Request) error {
	id, _, err := p.appOfRequest(r)
	if err != nil {
		return err
	}
	rows, err := db.New(p.Store.Pool()).AppSecrets(r.Context(), id)
	if err != nil {
		return err
	}
	type secret struct {
		Name string `json:"name"`
	}
	out := []secret{}
	for _, row := range rows {
		out = append(out, secret{row.Name})
	}
	return sendJSON(w, r, http.StatusOK, map[string]any{"secrets": out})
}

func (p *Platform) storeSecret(w http.ResponseWriter, r *http.Request) error {
	id, _, err := p.appOfRequest(r)
	if err != nil {
		return err
	}
	var in struct {
		Value string `json:"value"`
	}
	if err := readJSON(w, r, &in, `{"value": "…"}`); err != nil {
		return err
	}
	if err := p.putSecret(r.Context(), id, r.PathValue("name"), in.Value); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *Platform) removeSecret(w http.ResponseWriter, r *http.Request) error {
	id, _, err := p.appOfRequest(r)
	if err != nil {
		return err
	}
	if err := p.deleteSecret(r.Context(), id, r.PathValue("name")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
