package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"kiln/server/access"
	"kiln/server/outcome"
	"kiln/server/settings"
	"kiln/server/web"
)

// Settings are the configuration and the feature flags.
type Settings interface {
	Entries(category string) ([]settings.Entry, error)
	Put(ctx context.Context, key string, value json.RawMessage, by string) (settings.Entry, error)
	Delete(ctx context.Context, key string) (settings.Entry, error)
	FlagEntries() []settings.FlagEntry
	FlagEntry(name string) (settings.FlagEntry, error)
	PutFlag(ctx context.Context, name string, enabled bool, percentage *int32, clients []string, by string) (settings.FlagEntry, error)
	DeleteFlag(ctx context.Context, name string) (settings.FlagEntry, error)
}

// maxBody bounds the body of an administrator's request.
const maxBody = 1 << 20

func (p *Part) mountConfig(m *web.Mux) {
	m.HandleFunc(web.Admin, "GET /admin/config", p.listConfig)
	m.HandleFunc(web.Admin, "GET /admin/config/{category}", p.readCategory)
	m.HandleFunc(web.Admin, "GET /admin/config/{category}/{key}", p.readConfig)
	m.HandleFunc(web.Admin, "PUT /admin/config/{category}/{key}", p.putConfig)
	m.HandleFunc(web.Admin, "DELETE /admin/config/{category}/{key}", p.deleteConfig)
	m.HandleFunc(web.Admin, "GET /admin/features", func(w http.ResponseWriter, r *http.Request) { writeAnswer(w, r, p.Settings.FlagEntries(), nil) })
	m.HandleFunc(web.Admin, "GET /admin/features/{flag}", func(w http.ResponseWriter, r *http.Request) {
		e, err := p.Settings.FlagEntry(r.PathValue("flag"))
		writeAnswer(w, r, e, err)
	})
	m.HandleFunc(web.Admin, "PUT /admin/features/{flag}", p.putFlag)
	m.HandleFunc(web.Admin, "DELETE /admin/features/{flag}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("flag")
		e, err := p.Settings.DeleteFlag(r.Context(), name)
		p.answerChange(w, r, err, "feature "+name, "taken back")
		writeAnswer(w, r, e, err)
	})
}

func (p *Part) listConfig(w http.ResponseWriter, r *http.Request) {
	list, err := p.Settings.Entries(r.URL.Query().Get("category"))
	writeAnswer(w, r, list, err)
}

// readCategory answers with the values of a category by key, relative to it.
func (p *Part) readCategory(w http.ResponseWriter, r *http.Request) {
	list, err := p.Settings.Entries(r.PathValue("category"))
	values := make(map[string]any, len(list))
	for _, e := range list {
		values[strings.TrimPrefix(e.Key, e.Category+".")] = e.Value
	}
	writeAnswer(w, r, values, err)
}

// readConfig answers with the entry of one key.
func (p *Part) readConfig(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("category") + "." + r.PathValue("key")
	list, err := p.Settings.Entries(r.PathValue("category"))
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	var names []string
	for _, e := range list {
		if e.Key == name {
			writeAnswer(w, r, e, nil)
			return
		}
		names = append(names, e.Key)
	}
	writeAnswer(w, r, nil, outcome.New(outcome.CodeNotFound, "there is no configuration key %q%s", name, outcome.DidYouMean(name, names)))
}

func (p *Part) putConfig(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("category") + "." + r.PathValue("key")
	body, err := readBody(r)
	if err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	value := json.RawMessage(body)
	var wrapped map[string]json.RawMessage
	if json.Unmarshal(body, &wrapped) == nil {
		v, ok := wrapped["value"]
		if !ok || len(wrapped) != 1 {
			writeAnswer(w, r, nil, outcome.Invalid(`the body is an object that is not {"value": …}`))
			return
		}
		value = v
	}
	e, err := p.Settings.Put(r.Context(), name, value, who(r))
	p.answerChange(w, r, err, "configuration "+name, shown(e))
	writeAnswer(w, r, e, err)
}

func (p *Part) deleteConfig(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("category") + "." + r.PathValue("key")
	e, err := p.Settings.Delete(r.Context(), name)
	p.answerChange(w, r, err, "configuration "+name, "taken back to "+shown(e))
	writeAnswer(w, r, e, err)
}

// shown is an entry's value in words; secrets are masked already.
func shown(e settings.Entry) string {
	text, err := json.Marshal(e.Value)
	if err != nil {
		return ""
	}
	return string(text)
}

func (p *Part) putFlag(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Enabled    *bool    `json:"enabled"`
		Percentage *int32   `json:"percentage"`
		Clients    []string `json:"clients"`
	}
	name := r.PathValue("flag")
	if _, err := p.Settings.FlagEntry(name); err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	if err := decodeBody(r, &in); err != nil {
		writeAnswer(w, r, nil, err)
		return
	}
	if in.Enabled == nil {
		writeAnswer(w, r, nil, outcome.New(outcome.CodeRequired, `the body has no "enabled": expected {"enabled": true}`))
		return
	}
	e, err := p.Settings.PutFlag(r.Context(), name, *in.Enabled, in.Percentage, in.Clients, who(r))
	state := "off"
	if *in.Enabled {
		state = "on"
	}
	p.answerChange(w, r, err, "feature "+name, state)
	writeAnswer(w, r, e, err)
}

// answerChange tells the audit of a change that an administrator has made.
func (p *Part) answerChange(w http.ResponseWriter, r *http.Request, err error, what, to string) {
	if err == nil && p.Changed != nil {
		p.Changed(r.Context(), r, web.ExchangeOf(w), what, to)
	}
}

// who is the administrator's name, as it is stored with a change.
func who(r *http.Request) string {
	if a := access.PrincipalFrom(r.Context()); a != nil && a.Subject != "" {
		return a.Subject
	}
	return "anonymous"
}

// writeAnswer writes a value as JSON, or the error in its place.
func writeAnswer(w http.ResponseWriter, r *http.Request, v any, err error) {
	x := web.ExchangeOf(w)
	if err != nil {
		x.Fail(r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	x.SendJSON(r, http.StatusOK, v)
}

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, outcome.New(outcome.CodeStructure, "the body could not be read to its end").Because(err)
	case len(body) > maxBody:
		return nil, outcome.New(outcome.CodeTooLong, "the body is larger than %d bytes", maxBody)
	case !json.Valid(body):
		return nil, outcome.New(outcome.CodeStructure, "the body is not JSON")
	}
	return bytes.TrimSpace(body), nil
}

// decodeBody reads a body of known fields; an absent one leaves them as they are.
func decodeBody(r *http.Request, into any) error {
	if r.ContentLength == 0 {
		return nil
	}
	body, err := readBody(r)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return outcome.Invalid("the body has another form than expected: %s", strings.TrimPrefix(outcome.JSONProblem(err), "json: "))
	}
	return nil
}
