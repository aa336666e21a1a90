package oauth

import (
	"cmp"
	"context"
	"net/http"
	"net/url"

	"kiln/server/web"
)

// made is the id of a created object, as an audit event names it.
func made(answer any) string {
	switch a := answer.(type) {
	case *ClientAnswer:
		return a.ID
	case *UserAnswer:
		return a.Username
	}
	return ""
}

// mountAdmin adds /admin/clients, /admin/users, /admin/grants and /admin/apikeys.
func (s *Server) mountAdmin(m *web.Mux) {
	type call func(ctx context.Context, id string, body []byte) (any, error)
	handle := func(pattern string, status int, f call) {
		m.HandleFunc(web.Admin, pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := readBody(w, r)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			answer, err := f(r.Context(), r.PathValue("id"), body)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			if r.Method != http.MethodGet {
				s.audit(r, Event{Kind: EventManage, Detail: r.Method + " " + pattern[len(r.Method)+1:], Object: cmp.Or(r.PathValue("id"), made(answer))})
			}
			if status == http.StatusNoContent {
				noStore(w)
				w.WriteHeader(status)
				return
			}
			if status == http.StatusCreated {
				switch a := answer.(type) {
				case *ClientAnswer:
					w.Header().Set("Location", "/admin/clients/"+url.PathEscape(a.ID))
				case *UserAnswer:
					w.Header().Set("Location", "/admin/users/"+url.PathEscape(a.Username))
				}
			}
			writeJSON(w, status, answer)
		})
	}
	none := func(f func(ctx context.Context, id string) error) call {
		return func(ctx context.Context, id string, _ []byte) (any, error) { return nil, f(ctx, id) }
	}

	handle("GET /admin/clients", http.StatusOK, func(ctx context.Context, _ string, _ []byte) (any, error) { return s.Clients(ctx) })
	handle("POST /admin/clients", http.StatusCreated, func(ctx context.Context, _ string, b []byte) (any, error) { return s.CreateClient(ctx, b) })
	handle("GET /admin/clients/{id}", http.StatusOK, func(ctx context.Context, id string, _ []byte) (any, error) { return s.Client(ctx, id) })
	handle("PUT /admin/clients/{id}", http.StatusOK, func(ctx context.Context, id string, b []byte) (any, error) { return s.ReplaceClient(ctx, id, b) })
	handle("PATCH /admin/clients/{id}", http.StatusOK, func(ctx context.Context, id string, b []byte) (any, error) { return s.PatchClient(ctx, id, b) })
	handle("DELETE /admin/clients/{id}", http.StatusNoContent, none(s.DeleteClient))
	handle("POST /admin/clients/{id}/secret", http.StatusOK, func(ctx context.Context, id string, b []byte) (any, error) {
		var in struct {
			ClientSecret string `json:"clientSecret"`
		}
		if err := decodeOptional(b, &in); err != nil {
			return nil, err
		}
		return s.NewClientSecret(ctx, id, in.ClientSecret)
	})

	handle("GET /admin/users", http.StatusOK, func(ctx context.Context, _ string, _ []byte) (any, error) { return s.Users(ctx) })
	handle("POST /admin/users", http.StatusCreated, func(ctx context.Context, _ string, b []byte) (any, error) { return s.CreateUser(ctx, b) })
	handle("GET /admin/users/{id}", http.StatusOK, func(ctx context.Context, id string, _ []byte) (any, error) { return s.User(ctx, id) })
	handle("PUT /admin/users/{id}", http.StatusOK, func(ctx context.Context, id string, b []byte) (any, error) { return s.ReplaceUser(ctx, id, b) })
	handle("PATCH /admin/users/{id}", http.StatusOK, func(ctx context.Context, id string, b []byte) (any, error) { return s.PatchUser(ctx, id, b) })
	handle("DELETE /admin/users/{id}", http.StatusNoContent, none(s.DeleteUser))
	handle("POST /admin/users/{id}/password", http.StatusOK, func(ctx context.Context, id string, b []byte) (any, error) {
		var in struct {
			Password string `json:"password"`
		}
		if err := decodeOptional(b, &in); err != nil {
			return nil, err
		}
		return s.NewPassword(ctx, id, in.Password)
	})

	m.HandleFunc(web.Admin, "GET /admin/grants", s.listGrants)
	handle("DELETE /admin/grants/{id}", http.StatusNoContent, none(s.RevokeGrant))

	if s.options.Console != nil {
		m.HandleFunc(web.Admin, "GET /admin/sessions", s.listSessions)
		handle("DELETE /admin/sessions/{id}", http.StatusNoContent, none(s.EndSession))
	}

	m.HandleFunc(web.Admin, "POST /admin/token/explain", s.explain)
	handle("GET /admin/apikeys", http.StatusOK, func(ctx context.Context, _ string, _ []byte) (any, error) { return s.APIKeys(ctx) })
	handle("POST /admin/apikeys", http.StatusCreated, func(ctx context.Context, _ string, b []byte) (any, error) {
		var in struct {
			Name    string `json:"name"`
			Scope   string `json:"scope"`
			Expires string `json:"expires"`
		}
		if err := decodeStrict(b, &in); err != nil {
			return nil, invalidRequest("%s", err)
		}
		return s.CreateAPIKey(ctx, in.Name, in.Scope, in.Expires)
	})
	handle("DELETE /admin/apikeys/{id}", http.StatusNoContent, none(s.RevokeAPIKey))
}

func decodeOptional(body []byte, into any) error {
	if len(body) == 0 {
		return nil
	}
	if err := decodeStrict(body, into); err != nil {
		return invalidRequest("%s", err)
	}
	return nil
}
