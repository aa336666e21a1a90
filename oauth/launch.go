package oauth

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/outcome"
)

// LaunchRequest is the body of an EHR's request to launch an app.
type LaunchRequest struct {
	Patient           string `json:"patient"`
	Encounter         string `json:"encounter"`
	FHIRContext       []any  `json:"fhirContext"`
	Intent            string `json:"intent"`
	NeedPatientBanner *bool  `json:"needPatientBanner"`
	SmartStyleURL     string `json:"smartStyleUrl"`
	Tenant            string `json:"tenant"`
	ClientID          string `json:"client_id"`
	User              string `json:"user"`
}

// launchLifetime is how long a launch waits for its app.
const launchLifetime = 5 * time.Minute

// createLaunch is POST /auth/launch.
func (s *Server) createLaunch(w http.ResponseWriter, r *http.Request) {
	if !s.Config().Smart.LaunchEHREnabled {
		s.fail(w, r, outcome.New(outcome.CodeNotFound, "launches from an EHR are off (auth.smart.launch_ehr_enabled)"))
		return
	}
	ctx := r.Context()
	p := access.PrincipalFrom(ctx)
	if p == nil || !p.Admin && !p.Scopes.Has("launch/context") && !p.IsOpen() {
		s.bearerError(w, http.StatusForbidden, "insufficient_scope", "launch/context", "a launch needs a token with the scope launch/context or admin")
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var b LaunchRequest
	if err := decodeStrict(body, &b); err != nil {
		s.fail(w, r, invalidRequest("%s", err))
		return
	}
	id, err := s.NewLaunch(ctx, b)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusCreated, map[string]any{"launch": id, "expiresIn": int(launchLifetime.Seconds())})
}

// NewLaunch stores a launch context and returns its identifier.
func (s *Server) NewLaunch(ctx context.Context, b LaunchRequest) (string, error) {
	c := storage.Context{
		Intent: b.Intent, NeedPatientBanner: b.NeedPatientBanner, SmartStyleURL: b.SmartStyleURL, Tenant: b.Tenant, ClientID: b.ClientID, User: b.User,
	}
	var err error
	if c.Patient, err = bareID("patient", "Patient", b.Patient); err != nil {
		return "", err
	}
	if c.Encounter, err = bareID("encounter", "Encounter", b.Encounter); err != nil {
		return "", err
	}
	for typ, id := range map[string]string{"Patient": c.Patient, "Encounter": c.Encounter} {
		if id == "" || s.Records == nil {
			continue
		}
		ok, err := s.Records.Exists(ctx, typ+"/"+id)
		if err != nil {
			return "", err
		}
		if !ok {
			return "", invalidRequest("there is no %s/%s", typ, id)
		}
	}
	if c.Encounter != "" && s.Records != nil {
		of, err := s.Records.PatientOf(ctx, c.Encounter)
		if err != nil {
			return "", err
		}
		if of != "" && c.Patient != "" && of != c.Patient {
			return "", invalidRequest("Encounter/%s is not one of Patient/%s", c.Encounter, c.Patient)
		}
		// An encounter says which patient: nobody picks another one beside it.
		c.Patient = cmp.Or(c.Patient, of)
	}
	if b.FHIRContext != nil {
		for i, e := range b.FHIRContext {
			if !isContext(e) {
				return "", invalidRequest("fhirContext[%d]: expected an object with reference, canonical or identifier, and texts for reference, canonical, type and role", i)
			}
		}
		if c.FHIRContext, err = jsonOf(b.FHIRContext); err != nil {
			return "", err
		}
	}
	if b.SmartStyleURL != "" {
		if err := checkRemote(b.SmartStyleURL, true); err != nil {
			return "", invalidRequest("smartStyleUrl is %q: %s", b.SmartStyleURL, err)
		}
	}
	if b.ClientID != "" {
		if _, err := s.Store.GetClient(ctx, b.ClientID); err != nil {
			if isNotFound(err) {
				return "", invalidRequest("client_id: there is no client %q", b.ClientID)
			}
			return "", err
		}
	}
	if b.User != "" {
		if _, err := s.Store.User(ctx, b.User); err != nil {
			if isNotFound(err) {
				return "", invalidRequest("user: there is no user %q", b.User)
			}
			return "", err
		}
	}
	id := randomText()
	return id, s.Store.CreateLaunch(ctx, storage.Hash(id), c, s.Now().Add(launchLifetime))
}

// isContext reports whether a value is an element of fhirContext.
// SMART App Launch 2.2, fhirContext.
func isContext(e any) bool {
	object, ok := e.(map[string]any)
	if !ok {
		return false
	}
	for _, name := range []string{"reference", "canonical", "type", "role"} {
		if v, ok := object[name]; ok {
			if text, ok := v.(string); !ok || text == "" {
				return false
			}
		}
	}
	identifier, identified := object["identifier"]
	if _, ok := identifier.(map[string]any); identified && !ok {
		return false
	}
	return identified || object["reference"] != nil || object["canonical"] != nil
}

// bareID is the logical id of a bare id or a reference.
func bareID(field, typ, text string) (string, error) {
	id := strings.TrimPrefix(text, typ+"/")
	if text != "" && !logicalID.MatchString(id) {
		return "", outcome.New(outcome.CodeInvalid, "%s is %q: expected an id, or %s/ and an id", field, text, typ)
	}
	return id, nil
}
