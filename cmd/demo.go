package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"kiln/oauth"
	"kiln/oauth/simulator"
	"kiln/server"
	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/settings"
	"kiln/server/web"
)

//go:embed demo.json
var demoBundle []byte

// demo is what kiln serve --demo makes: an authorization server with users, clients
// and patients to try things out with.
type demo struct {
	*oauth.Server
	simulator *simulator.Part
	passwords map[string]string
	secret    string // of the backend client
}

// Mount adds the launch simulator to the authorization server.
func (d *demo) Mount(m *web.Mux) {
	d.Server.Mount(m)
	d.simulator.Mount(m)
}

// demoConfig turns authorization on. It refuses a public address: passwords stand
// on the screen, and who opens /launch launches.
func demoConfig(c *server.Config) error {
	host, _, err := net.SplitHostPort(c.Server.Listen)
	if err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	if !loopback(host) {
		return fmt.Errorf("server.listen is %s: --demo is for loopback addresses, such as 127.0.0.1:8080", c.Server.Listen)
	}
	for _, key := range [][2]string{{"server.base_url", c.Server.BaseURL}, {"auth.issuer", c.Auth.Issuer}} {
		if u, err := url.Parse(key[1]); key[1] != "" && (err != nil || !loopback(u.Hostname())) {
			return fmt.Errorf("%s is %s: --demo is for loopback addresses, which no proxy makes public", key[0], settings.Redact(key[1]))
		}
	}
	c.Auth.Enabled = true
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// demoBackend is the demo's client without users.
const demoBackend = "demo-backend"

var demoUsers = []struct{ name, people, fhirUser, role string }{
	{"admin", "Ada Admin", "", "admin"},
	{"clinician", "Dr. Clara Clinician", "Practitioner/demo-practitioner", ""},
	{"patient", "Peter Patient", "Patient/demo-peter", ""},
}

// bootstrapped returns the names that auth.bootstrap makes. It fails where one of them
// is a name that the demo makes, whose secret would not be the printed one.
func bootstrapped(entries []map[string]any, key string, demo []string) (map[string]bool, error) {
	names := make(map[string]bool, len(entries))
	for _, entry := range entries {
		name, _ := entry[key].(string)
		if slices.Contains(demo, name) {
			return nil, fmt.Errorf("auth.bootstrap makes %q, and so does --demo: give it another name", name)
		}
		names[name] = true
	}
	return names, nil
}

// newDemo fills an empty database. It fails on one that anybody has used; the
// clients and users of auth.bootstrap are none of its users.
func newDemo(ctx context.Context, s *server.Server) (_ *demo, err error) {
	var names []string
	for _, u := range demoUsers {
		names = append(names, u.name)
	}
	configuredUsers, err := bootstrapped(s.Config.Auth.Bootstrap.Users, "username", names)
	if err != nil {
		return nil, err
	}
	configuredClients, err := bootstrapped(s.Config.Auth.Bootstrap.Clients, "clientId", []string{simulator.AppID, demoBackend})
	if err != nil {
		return nil, err
	}
	a, err := server.NewAuthorization(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	d := &demo{Server: a, passwords: make(map[string]string), simulator: &simulator.Part{Server: a, Logger: s.Logger, Principal: access.Open}}
	open := access.WithPrincipal(ctx, access.Open)

	// 1. Nobody has used the database: it contains only the resources of this start.
	history, err := s.Service.History(open, interaction.HistoryParams{Values: map[string][]string{"_count": {"1"}}})
	if err != nil {
		return nil, err
	}
	users, err := a.Users(ctx)
	if err != nil {
		return nil, err
	}
	clients, err := a.Clients(ctx)
	if err != nil {
		return nil, err
	}
	users = slices.DeleteFunc(users, func(u *oauth.UserAnswer) bool { return configuredUsers[u.Username] })
	clients = slices.DeleteFunc(clients, func(c *oauth.ClientAnswer) bool { return configuredClients[c.ID] || c.ID == oauth.ConsoleClient })
	if len(history.Bundle.Entries)+len(users)+len(clients) > 0 {
		return nil, errors.New("--demo is for an empty database, and this one is in use; give it another: --data-dir .kiln-demo")
	}

	// 2. Patients.
	if _, err := s.Service.Bundle(open, interaction.BundleParams{Body: demoBundle, BaseURL: a.FHIRBase}); err != nil {
		return nil, fmt.Errorf("store the demo's patients: %w", err)
	}

	// 3. Users and clients.
	for _, u := range demoUsers {
		body := map[string]any{"username": u.name, "name": u.people, "fhirUser": u.fhirUser}
		if u.role != "" {
			body["roles"] = []string{u.role}
		}
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		made, err := a.CreateUser(ctx, b)
		if err != nil {
			return nil, err
		}
		d.passwords[u.name] = made.Password
	}
	for _, c := range []map[string]any{
		{
			"clientId": simulator.AppID, "name": "Demo app", "scopes": []string{simulator.AppScopes},
			"launchUri": a.Issuer + simulator.LaunchPath, "redirectUris": []string{a.Issuer + simulator.CallbackPath},
		},
		{"clientId": demoBackend, "name": "Demo backend", "confidential": true, "grantTypes": []string{"client_credentials"}, "scopes": []string{"system/*.cruds admin launch/context"}},
	} {
		b, err := json.Marshal(c)
		if err != nil {
			return nil, err
		}
		made, err := a.CreateClient(ctx, b)
		if err != nil {
			return nil, err
		}
		if made.ClientSecret != "" {
			d.secret = made.ClientSecret
		}
	}
	return d, nil
}

// banner prints addresses and commands to try, on one screen.
func (d *demo) banner(w io.Writer) {
	fmt.Fprintf(w, `
  Kiln %s, demo: authorization is on, the patients are made up

  Console        %s/console
  Launch an app  %s/launch
  Sign in as     `, softwareVersion(), d.Issuer, d.Issuer)
	for i, u := range demoUsers {
		if i > 0 {
			fmt.Fprint(w, strings.Repeat(" ", 17))
		}
		fmt.Fprintf(w, "%-10s %s\n", u.name, d.passwords[u.name])
	}
	fmt.Fprintf(w, `  Apps           %s (public), demo-backend (secret %s)

  A token        TOKEN=$(curl -s -u demo-backend:%s %s/auth/token \
                   -d grant_type=client_credentials -d 'scope=system/*.rs admin' | sed 's/.*"access_token":"\([^"]*\)".*/\1/')
  Read           curl -H "Authorization: Bearer $TOKEN" %s/Patient
  Administer     curl -H "Authorization: Bearer $TOKEN" %s/admin/clients
  Discovery      curl %s/.well-known/smart-configuration
  Stop           Ctrl-C

`, simulator.AppID, d.secret, d.secret, d.Issuer, d.FHIRBase, d.Issuer, d.FHIRBase)
}
