package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"kiln/oauth"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/smart"
	"kiln/server/store"
)

// NewAuthorization builds the authorization server of the package oauth on the parts
// of a server.
func NewAuthorization(ctx context.Context, s *Server) (*oauth.Server, error) {
	proxies, err := s.Config.trustedProxies()
	if err != nil {
		return nil, err
	}
	database := s.Config.Database.URL
	if s.Database != nil {
		database = s.Database.URL
	}
	a, err := oauth.New(ctx, oauth.Options{
		Config:  s.Config.Auth,
		Current: s.authInForce,
		BaseURL: s.Config.Server.BaseURL,
		Listen:  s.Config.Server.Listen,
		URL:     database,
		Watch:   s.Store.Watch, Translate: store.Translate, Replica: s.Store.FactPool,
		Records: records{s.Service},
		Proxies: proxies,
		Logger:  s.Logger,
		Explain: s.explain,
		Console: func() oauth.ConsoleTimes { return s.now().Console.times() },
		Audit:   s.recordAuthorization,
	})
	if err != nil {
		return nil, err
	}
	was := s.authInForce()
	s.Settings.OnChange(func(Config) {
		is := s.authInForce()
		a.Reconfigure(context.Background(), was, is)
		was = is
	})
	return a, nil
}

// oauthURIs are the endpoints of the authorization server as the capability statement
// names them; nil without authorization.
func (s *Server) oauthURIs() map[string]string {
	a, ok := s.authorizationServer.(interface{ Discovery() map[string]any })
	if !ok {
		return nil
	}
	discovery := a.Discovery()
	uris := make(map[string]string)
	for name, field := range map[string]string{
		"authorize": "authorization_endpoint", "token": "token_endpoint", "register": "registration_endpoint",
		"introspect": "introspection_endpoint", "revoke": "revocation_endpoint",
	} {
		if uri, ok := discovery[field].(string); ok {
			uris[name] = uri
		}
	}
	return uris
}

// authInForce is the section auth as administrators have set it last.
func (s *Server) authInForce() oauth.Config {
	c := s.now().Auth
	c.Smart.DynamicRegistrationEnabled = s.Settings.Enabled("auth.dynamic_registration", "")
	return c
}

// explain says what allows or denies a principal a request, or, without one, what its
// scopes give.
func (s *Server) explain(ctx context.Context, p *access.Principal, method, path string) (any, error) {
	ctx = access.WithPrincipal(ctx, p)
	e, err := s.Service.Explain(ctx, s.Service.Access.RightsOf(ctx, p), method, path)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// records are the authorization server's queries to the FHIR side. They run with the rights
// of the user concerned, so that package access decides here too.
type records struct{ service *interaction.Service }

// Exists reports whether a reference such as Practitioner/1 has a target.
func (r records) Exists(ctx context.Context, reference string) (bool, error) {
	typ, id, _ := strings.Cut(reference, "/")
	return resourceExists(ctx, r.service.Store, typ, id)
}

func resourceExists(ctx context.Context, from *store.Store, typ, id string) (bool, error) {
	v, err := from.Read(ctx, typ, id)
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
		return false, nil
	}
	return err == nil && !v.Deleted(), err
}

// ActsFor reports whether RelatedPerson/id is related to a patient now.
func (r records) ActsFor(ctx context.Context, relatedPerson, patient string) (bool, error) {
	patients, err := r.service.Access.Patients(ctx, relatedPerson)
	return slices.Contains(patients, patient), err
}

// Sees reports whether p may read a resource that there is.
func (r records) Sees(ctx context.Context, p *access.Principal, typ, id string) (bool, error) {
	_, err := r.service.Read(access.WithPrincipal(ctx, p), interaction.ReadParams{ResourceType: typ, ID: id})
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted, outcome.CodeForbidden) {
		return false, nil
	}
	return err == nil, err
}

// shown is how many patients or encounters a picker shows.
const shown = "25"

// searchEscape writes a text as one value of a search parameter.
// Spec: https://hl7.org/fhir/R4/search.html#escaping.
var searchEscape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `$`, `\$`, `|`, `\|`)

// Patient describes a patient whom p may see; of one whom p may not, it has the id.
func (r records) Patient(ctx context.Context, p *access.Principal, id string) (oauth.Patient, error) {
	v, err := r.service.Read(access.WithPrincipal(ctx, p), interaction.ReadParams{ResourceType: "Patient", ID: id})
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted, outcome.CodeForbidden) {
		return oauth.Patient{ID: id}, nil
	}
	if err != nil {
		return oauth.Patient{}, err
	}
	return describePatient(id, v.Body), nil
}

// Patients returns patients by name or identifier, and birth date.
func (r records) Patients(ctx context.Context, p *access.Principal, text, birthDate string) ([]oauth.Patient, error) {
	base := url.Values{"_count": {shown}, "_total": {"none"}}
	if birthDate != "" {
		base.Set("birthdate", birthDate)
	}
	searches := []url.Values{base}
	if text != "" {
		searches = nil
		for _, parameter := range []string{"name", "identifier"} {
			values := url.Values{parameter: {searchEscape.Replace(text)}}
			for name, v := range base {
				values[name] = v
			}
			searches = append(searches, values)
		}
		// Each word of a full name is a part of it.
		if words := strings.Fields(text); len(words) > 1 {
			searches[0].Del("name")
			for _, word := range words {
				searches[0].Add("name", searchEscape.Replace(word))
			}
		}
	}
	var out []oauth.Patient
	seen := make(map[string]bool)
	for _, values := range searches {
		err := r.each(ctx, p, "Patient", values, func(id string, body []byte) {
			if !seen[id] {
				seen[id] = true
				out = append(out, describePatient(id, body))
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Encounters returns the encounters of a patient, latest first.
func (r records) Encounters(ctx context.Context, p *access.Principal, patient string) ([]oauth.Encounter, error) {
	var out []oauth.Encounter
	err := r.each(ctx, p, "Encounter", url.Values{"subject": {"Patient/" + patient}, "_sort": {"-date"}, "_count": {shown}, "_total": {"none"}},
		func(id string, body []byte) { out = append(out, describeEncounter(id, body)) })
	return out, err
}

// each calls f for every match. What p may not search has none.
func (r records) each(ctx context.Context, p *access.Principal, typ string, values url.Values, f func(id string, body []byte)) error {
	answer, err := r.service.Search(access.WithPrincipal(ctx, p), interaction.SearchParams{ResourceType: typ, Values: values})
	if outcome.Is(err, outcome.CodeForbidden) {
		return nil
	}
	if err != nil {
		return err
	}
	defer answer.Release()
	for _, e := range answer.Bundle.Entries {
		if e.Mode == "match" && len(e.Version.Body) > 0 {
			f(e.Version.ID, e.Version.Body)
		}
	}
	return nil
}

type codeable struct {
	Text   string
	Coding []struct{ Display, Code string }
}

func (c codeable) String() string {
	if c.Text != "" {
		return c.Text
	}
	for _, x := range c.Coding {
		if x.Display != "" {
			return x.Display
		}
	}
	return ""
}

func describePatient(id string, body []byte) oauth.Patient {
	var r struct {
		Name []struct {
			Text, Family string
			Given        []string
		}
		BirthDate, Gender string
		Identifier        []struct{ Value string }
	}
	_ = json.Unmarshal(body, &r) // what cannot be read is shown by its id
	p := oauth.Patient{ID: id, BirthDate: r.BirthDate, Gender: r.Gender}
	for _, n := range r.Name {
		if p.Name = n.Text; p.Name == "" {
			p.Name = strings.TrimSpace(strings.Join(n.Given, " ") + " " + n.Family)
		}
		if p.Name != "" {
			break
		}
	}
	for _, i := range r.Identifier {
		if p.Identifier = i.Value; p.Identifier != "" {
			break
		}
	}
	return p
}

// Means reports whether a scope is about resources that there can be.
func (r records) Means(ctx context.Context, scope smart.Scope) bool {
	return r.service.Access.ScopeMatchesAny(ctx, scope)
}

// PatientOf returns the id of the patient of an encounter, "" for none.
func (r records) PatientOf(ctx context.Context, encounter string) (string, error) {
	v, err := r.service.Store.Read(ctx, "Encounter", encounter)
	if err != nil {
		return "", err
	}
	var e struct {
		Subject struct {
			Reference string `json:"reference"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(v.Body, &e); err != nil {
		return "", fmt.Errorf("encounter: %w", err)
	}
	id, _ := strings.CutPrefix(e.Subject.Reference, "Patient/")
	return id, nil
}

func describeEncounter(id string, body []byte) oauth.Encounter {
	var r struct {
		Status string
		Class  struct{ Display, Code string }
		Type   []codeable
		Period struct{ Start, End string }
	}
	_ = json.Unmarshal(body, &r) // what cannot be read is shown by its id
	e := oauth.Encounter{ID: id, Status: r.Status, Description: r.Class.Display}
	for _, t := range r.Type {
		if text := t.String(); text != "" {
			e.Description = text
			break
		}
	}
	day := func(at string) string { return at[:min(len(at), len("2006-01-02"))] }
	if e.Period = day(r.Period.Start); r.Period.End != "" && day(r.Period.End) != e.Period {
		e.Period += " to " + day(r.Period.End)
	}
	return e
}
