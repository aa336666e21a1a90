package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// accessTabs is the navigation of the screens about access.
func (v *visit) accessTabs(current string) []navItem {
	var out []navItem
	for _, t := range []struct{ name, path string }{{"Users", "users"}, {"Clients", "clients"}, {"API keys", "keys"}, {"Grants", "grants"}, {"Policies", "policies"}, {"Explain a token", "explain"}} {
		if v.Open() && t.path != "policies" {
			continue
		}
		out = append(out, navItem{v.T(t.name), "/console/access/" + t.path, t.path == current})
	}
	return out
}

// access shows the screens about access.
func (v *visit) access(parts []string) error {
	page := "users"
	if v.Open() {
		page = "policies"
	}
	if len(parts) > 0 {
		page = parts[0]
	} else {
		v.redirect("/console/access/" + page)
		return nil
	}
	if v.Open() && page != "policies" {
		return v.problem(http.StatusNotFound, "Authorization is off: there are no users and clients.")
	}
	rest := parts[1:]
	p := panel{TabsName: v.T("Access"), Tabs: v.accessTabs(page)}
	if err := v.showSecret(&p); err != nil {
		return err
	}
	switch page {
	case "users":
		return v.users(p, rest)
	case "clients":
		return v.clients(p, rest)
	case "keys":
		return v.keys(p, rest)
	case "grants":
		return v.grants(p, rest)
	case "policies":
		return v.policies(p, rest)
	case "explain":
		return v.explainToken(p)
	}
	return errNoPage
}

// yesNo writes a truth.
func (v *visit) yesNo(b bool) string {
	if b {
		return v.T("yes")
	}
	return v.T("no")
}

// accessUser is a user, as /admin/users answers it.
type accessUser struct {
	Username, Name, FHIRUser, Email, Password string
	Roles                                     []string
	Active                                    bool
}

// userForm is the form of a user. username is "" for a new one.
func (v *visit) userForm(u accessUser, isNew bool) panelForm {
	action := "/console/access/users/" + escape(u.Username)
	fields := []field{}
	hint := v.T("Empty keeps the password.")
	if isNew {
		action, hint = "/console/access/users/new", v.T("Empty makes one, which is shown once.")
		fields = append(fields, field{Label: v.T("User name"), Name: "username", Value: u.Username, Required: true})
	}
	fields = append(fields, field{Label: v.T("Password"), Name: "password", Kind: "password", Hint: hint, Complete: "new-password"}, field{Label: v.T("Name"), Name: "name", Value: u.Name},
		field{Label: v.T("FHIR user"), Name: "fhiruser", Value: u.FHIRUser, Hint: "Practitioner/1"}, field{Label: v.T("Administrator"), Name: "admin", Kind: "checkbox", Checked: slices.Contains(u.Roles, "admin")},
		field{Label: v.T("Active"), Name: "active", Kind: "checkbox", Checked: u.Active})
	f := v.newForm(action, v.T("Save"), fields...)
	if !isNew {
		f.Username = u.Username
	}
	return f
}

func (v *visit) users(p panel, parts []string) error {
	if len(parts) > 1 {
		return errNoPage
	}
	if len(parts) == 0 {
		var list []accessUser
		if err := v.get("/admin/users", &list); err != nil {
			return err
		}
		t := table{Name: v.T("Users"), Head: columns(v.T("User name"), v.T("Name"), v.T("FHIR user"), v.T("Roles"), v.T("Active"))}
		for _, u := range list {
			t.Rows = append(t.Rows, []cell{linkCell(u.Username, "/console/access/users/"+escape(u.Username)), textCell(u.Name), referenceCell(u.FHIRUser, ""), textCell(strings.Join(u.Roles, ", ")), textCell(v.yesNo(u.Active))})
		}
		p.Tables, p.Links = []table{t}, []navItem{{Name: v.T("New user"), Path: "/console/access/users/new"}}
		return v.showPanel("access", v.T("Users"), p)
	}
	isNew := parts[0] == "new"
	heading := v.T("New user")
	u := accessUser{Active: true}
	p.Title = v.T("Users")
	if !isNew {
		heading = parts[0]
		if err := v.get("/admin/users/"+escape(parts[0]), &u); err != nil {
			return err
		}
	}
	if v.r.Method == http.MethodPost {
		u.Name, u.FHIRUser, u.Active, u.Password = v.form.Get("name"), strings.TrimSpace(v.form.Get("fhiruser")), v.form.Get("active") == "true", v.form.Get("password")
		u.Roles = slices.DeleteFunc(u.Roles, func(r string) bool { return r == "admin" })
		if v.form.Get("admin") == "true" {
			u.Roles = append(u.Roles, "admin")
		}
		body := map[string]any{"name": u.Name, "fhirUser": u.FHIRUser, "roles": append([]string{}, u.Roles...), "active": u.Active}
		if u.Password != "" {
			body["password"] = u.Password
		}
		method, path := http.MethodPatch, "/admin/users/"+escape(parts[0])
		if isNew {
			u.Username = strings.TrimSpace(v.form.Get("username"))
			method, path, body["username"] = http.MethodPost, "/admin/users", u.Username
		}
		var made accessUser
		err := v.send(method, path, body, &made)
		if err == nil && made.Password != "" && u.Password == "" {
			return v.doneWithSecret("/console/access/users/"+escape(made.Username), v.T("%s is stored.", made.Username), made.Password)
		}
		if err == nil {
			return v.done("/console/access/users", v.T("%s is stored.", made.Username))
		}
		if err := v.refuse(err); err != nil {
			return err
		}
		u.Password = ""
	}
	p.Forms = []panelForm{v.userForm(u, isNew)}
	return v.showPanel("access", heading, p)
}

// accessClient is a client, as /admin/clients answers it.
type accessClient struct {
	ClientID     string `json:"clientId"`
	Name         string
	Confidential bool
	RedirectURIs []string `json:"redirectUris"`
	Scopes       []string
	GrantTypes   []string `json:"grantTypes"`
	Active       bool
	Secret       string `json:"clientSecret"`
}

func (v *visit) clients(p panel, parts []string) error {
	if len(parts) > 1 {
		return errNoPage
	}
	if len(parts) == 0 {
		var list []accessClient
		if err := v.get("/admin/clients", &list); err != nil {
			return err
		}
		t := table{Name: v.T("Clients"), Head: columns(v.T("Client id"), v.T("Name"), v.T("Confidential"), v.T("Scopes"), v.T("Active"))}
		for _, c := range list {
			t.Rows = append(t.Rows, []cell{linkCell(c.ClientID, "/console/access/clients/"+escape(c.ClientID)), textCell(c.Name), textCell(v.yesNo(c.Confidential)), {Text: clipText(strings.Join(c.Scopes, " ")), Class: "wrap"}, textCell(v.yesNo(c.Active))})
		}
		p.Tables, p.Links = []table{t}, []navItem{{Name: v.T("New client"), Path: "/console/access/clients/new"}}
		return v.showPanel("access", v.T("Clients"), p)
	}
	isNew := parts[0] == "new"
	heading := v.T("New client")
	c := accessClient{Active: true}
	p.Title = v.T("Clients")
	if !isNew {
		heading = parts[0]
		if err := v.get("/admin/clients/"+escape(parts[0]), &c); err != nil {
			return err
		}
	}
	if v.r.Method == http.MethodPost {
		c.Name, c.RedirectURIs, c.Scopes, c.Active = v.form.Get("name"), linesOf(v.form.Get("redirects")), linesOf(v.form.Get("scopes")), v.form.Get("active") == "true"
		body := map[string]any{"name": c.Name, "redirectUris": c.RedirectURIs, "scopes": c.Scopes, "active": c.Active}
		method, path := http.MethodPatch, "/admin/clients/"+escape(parts[0])
		if isNew {
			c.Confidential, c.ClientID = v.form.Get("confidential") == "true", strings.TrimSpace(v.form.Get("clientid"))
			body["confidential"] = c.Confidential
			if c.ClientID != "" {
				body["clientId"] = c.ClientID
			}
			if len(c.RedirectURIs) == 0 {
				body["grantTypes"] = []string{"client_credentials"}
			}
			method, path = http.MethodPost, "/admin/clients"
		}
		var made accessClient
		err := v.send(method, path, body, &made)
		if err == nil && made.Secret != "" {
			return v.doneWithSecret("/console/access/clients/"+escape(made.ClientID), v.T("%s is stored.", made.ClientID), made.Secret)
		}
		if err == nil {
			return v.done("/console/access/clients", v.T("%s is stored.", made.ClientID))
		}
		if err := v.refuse(err); err != nil {
			return err
		}
	}
	action := "/console/access/clients/" + escape(parts[0])
	fields := []field{}
	if isNew {
		fields = append(fields, field{Label: v.T("Client id"), Name: "clientid", Value: c.ClientID, Hint: v.T("Empty makes one.")}, field{Label: v.T("Confidential"), Name: "confidential", Kind: "checkbox", Checked: c.Confidential})
	}
	fields = append(fields, field{Label: v.T("Name"), Name: "name", Value: c.Name}, field{Label: v.T("Redirect URIs"), Name: "redirects", Kind: "textarea", Wide: true, Value: strings.Join(c.RedirectURIs, "\n"), Hint: v.T("One a line.")},
		field{Label: v.T("Scopes"), Name: "scopes", Kind: "textarea", Wide: true, Value: strings.Join(c.Scopes, "\n"), Hint: v.T("One a line.")}, field{Label: v.T("Active"), Name: "active", Kind: "checkbox", Checked: c.Active})
	p.Forms = []panelForm{v.newForm(action, v.T("Save"), fields...)}
	return v.showPanel("access", heading, p)
}

func (v *visit) keys(p panel, parts []string) error {
	type key struct {
		ID, Name, Scope, Key string
		Created              *time.Time
		Expires              *time.Time
		Revoked              bool
	}
	var list []key
	if err := v.get("/admin/apikeys", &list); err != nil {
		return err
	}
	switch {
	case len(parts) == 1 && parts[0] == "new":
		if v.r.Method == http.MethodPost {
			body := map[string]any{"name": v.form.Get("name"), "scope": strings.Join(linesOf(v.form.Get("scopes")), " ")}
			if text := strings.TrimSpace(v.form.Get("expires")); text != "" {
				body["expires"] = text
			}
			var made key
			err := v.send(http.MethodPost, "/admin/apikeys", body, &made)
			if err == nil {
				return v.doneWithSecret("/console/access/keys", v.T("%s is stored.", made.Name), made.Key)
			}
			if err := v.refuse(err); err != nil {
				return err
			}
		}
		p.Forms = []panelForm{v.newForm("/console/access/keys/new", v.T("Save"), field{Label: v.T("Name"), Name: "name", Value: v.form.Get("name"), Required: true},
			field{Label: v.T("Expires"), Name: "expires", Value: v.form.Get("expires"), Hint: v.T("Such as 90d; empty is never.")},
			field{Label: v.T("Scopes"), Name: "scopes", Kind: "textarea", Wide: true, Value: v.form.Get("scopes"), Hint: v.T("One a line."), Required: true})}
		return v.showPanel("access", v.T("New key"), p)
	case len(parts) == 1:
		i := slices.IndexFunc(list, func(k key) bool { return k.ID == parts[0] })
		if i < 0 {
			return errNoPage
		}
		if v.r.Method == http.MethodPost {
			if err := v.send(http.MethodDelete, "/admin/apikeys/"+escape(parts[0]), nil, nil); err != nil {
				return err
			}
			return v.done("/console/access/keys", v.T("%s is revoked.", list[i].Name))
		}
		return v.confirm(v.T("API keys"), v.T("Revoke %s?", list[i].Name), v.T("Requests with this key are refused from then on."), v.T("Revoke %s", list[i].Name), "/console/access/keys/"+escape(parts[0]), "/console/access/keys")
	case len(parts) > 1:
		return errNoPage
	}
	t := table{Name: v.T("API keys"), Head: columns(v.T("Name"), v.T("Scopes"), v.T("Created"), v.T("Expires"), v.T("Action"))}
	for _, k := range list {
		action := cell{Text: v.T("revoked")}
		if !k.Revoked {
			action = cell{Buttons: []button{ask(v.T("Revoke %s", k.Name), "/console/access/keys/"+escape(k.ID))}}
		}
		t.Rows = append(t.Rows, []cell{{Text: k.Name, Head: true}, {Text: k.Scope, Class: "wrap"}, timeCell(k.Created), timeCell(k.Expires), action})
	}
	p.Tables, p.Links = []table{t}, []navItem{{Name: v.T("New key"), Path: "/console/access/keys/new"}}
	return v.showPanel("access", v.T("API keys"), p)
}

// accessGrant is the access of an app to the data of a user.
type accessGrant struct {
	ID, User, Client string
	Scopes           []string
	Since, LastUsed  *time.Time
}

func (v *visit) grants(p panel, parts []string) error {
	if len(parts) == 1 {
		user, client := "", parts[0]
		var list struct{ Grants []accessGrant }
		if err := v.get("/admin/grants?count=1000", &list); err != nil {
			return err
		}
		for _, g := range list.Grants {
			if g.ID == parts[0] {
				user, client = g.User, g.Client
			}
		}
		if user == "" {
			return errNoPage
		}
		if v.r.Method == http.MethodPost {
			if err := v.send(http.MethodDelete, "/admin/grants/"+escape(parts[0]), nil, nil); err != nil {
				return err
			}
			return v.done("/console/access/grants", v.T("%s is revoked.", client))
		}
		return v.confirm(v.T("Grants"), v.T("Revoke %s?", client), v.T("The app loses its access to the data of %s at once.", user), v.T("Revoke %s", client), "/console/access/grants/"+escape(parts[0]), "/console/access/grants")
	}
	var answer struct {
		Grants []accessGrant
		Next   *string
	}
	target := "/admin/grants"
	if after := v.r.URL.Query().Get("after"); after != "" {
		target += "?" + url.Values{"after": {after}}.Encode()
	}
	if err := v.get(target, &answer); err != nil {
		return err
	}
	t := table{Name: v.T("Grants"), Head: columns(v.T("User"), v.T("App"), v.T("May"), v.T("Since"), v.T("Last used"), v.T("Action"))}
	for _, g := range answer.Grants {
		t.Rows = append(t.Rows, []cell{linkCell(g.User, "/console/access/users/"+escape(g.User)), textCell(g.Client), {Text: strings.Join(g.Scopes, " "), Class: "wrap"}, timeCell(g.Since), timeCell(g.LastUsed), {Buttons: []button{ask(v.T("Revoke %s", g.Client), "/console/access/grants/"+escape(g.ID))}}})
	}
	if answer.Next != nil {
		if u, err := url.Parse(*answer.Next); err == nil {
			p.Links = []navItem{{Name: v.T("Next page"), Path: "/console/access/grants?" + url.Values{"after": {u.Query().Get("after")}}.Encode()}}
		}
	}
	p.Tables = []table{t}
	return v.showPanel("access", v.T("Grants"), p)
}

func (v *visit) policies(p panel, parts []string) error {
	if len(parts) > 1 {
		return errNoPage
	}
	if len(parts) == 0 {
		var raw json.RawMessage
		if err := v.get("/admin/policies", &raw); err != nil {
			return err
		}
		n, err := parseTree(raw)
		if err != nil {
			return err
		}
		if n.kind == '{' {
			n = n.get("policies")
		}
		t := table{Name: v.T("Policies"), Head: columns(v.T("Name"), v.T("Effect"), "#"+v.T("Priority"), v.T("Condition"), v.T("Active"), v.T("Dry run"))}
		for _, x := range n.items() {
			dry := cell{}
			if x.str("dryRun") == "true" {
				dry.Text = v.T("Would have denied: %s", x.str("dryRunDenied"))
			}
			active := v.yesNo(x.str("active") == "true")
			t.Rows = append(t.Rows, []cell{linkCell(x.str("name"), "/console/access/policies/"+escape(x.str("name"))), {Tag: x.str("effect")}, {Text: x.str("priority"), Class: "number"}, {Text: x.str("condition"), Class: "wrap"}, textCell(active), dry})
		}
		p.Tables, p.Links = []table{t}, []navItem{{Name: v.T("New policy"), Path: "/console/access/policies/new"}}
		return v.showPanel("access", v.T("Policies"), p)
	}
	isNew := parts[0] == "new"
	heading, text, dry := v.T("New policy"), "{\n  \"name\": \"\",\n  \"active\": true,\n  \"priority\": 100,\n  \"matcher\": {},\n  \"effect\": \"deny\"\n}", false
	p.Title = v.T("Policies")
	if !isNew {
		heading = parts[0]
		a := v.call(http.MethodGet, "/admin/policies/"+escape(parts[0]), nil)
		if err := a.err(); err != nil {
			return err
		}
		var policy map[string]any
		if err := decodeJSON(a.Bytes(), &policy); err != nil {
			return err
		}
		dry, _ = policy["dryRun"].(bool)
		p.Facts = [][2]string{}
		if n, ok := policy["dryRunDenied"].(json.Number); ok && dry {
			p.Facts = append(p.Facts, [2]string{v.T("Dry run"), v.T("Would have denied: %s", n.String())})
		}
		delete(policy, "dryRunDenied")
		b, err := json.MarshalIndent(policy, "", "  ")
		if err != nil {
			return err
		}
		text = string(b)
	}
	if v.r.Method == http.MethodPost {
		text, dry = v.form.Get("policy"), v.form.Get("dry") == "true"
		var policy map[string]any
		if err := decodeJSON([]byte(text), &policy); err != nil || policy == nil {
			v.status, v.Alerts = http.StatusBadRequest, []string{v.T("The policy is no JSON object.")}
		} else {
			policy["dryRun"] = dry
			method, path := http.MethodPut, "/admin/policies/"+escape(parts[0])
			if isNew {
				method, path = http.MethodPost, "/admin/policies"
			}
			err := v.send(method, path, policy, nil)
			if err == nil {
				return v.done("/console/access/policies", v.T("The policy is stored."))
			}
			if err := v.refuse(err); err != nil {
				return err
			}
		}
	}
	p.Forms = []panelForm{v.newForm("/console/access/policies/"+escape(parts[0]), v.T("Save"), field{Label: v.T("Policy"), Name: "policy", Kind: "textarea", Wide: true, Value: text, Required: true}, field{Label: v.T("Dry run"), Name: "dry", Kind: "checkbox", Checked: dry})}
	return v.showPanel("access", heading, p)
}

// explainToken shows the rights of a token. The token is sent by POST and shown nowhere.
func (v *visit) explainToken(p panel) error {
	if v.r.Method == http.MethodPost {
		body := map[string]any{"token": v.form.Get("token")}
		if path := strings.TrimSpace(v.form.Get("path")); path != "" {
			body["method"], body["path"] = v.form.Get("method"), path
		}
		var raw json.RawMessage
		if err := v.refuse(v.send(http.MethodPost, "/admin/token/explain", body, &raw)); err != nil {
			return err
		}
		if len(raw) > 0 {
			p.Regions = []region{{v.T("Decision"), indentJSON(raw)}}
		}
	}
	verbs := field{Label: v.T("Method"), Name: "method", Kind: "select"}
	for _, m := range methods {
		verbs.Options = append(verbs.Options, option{Value: m, Label: m, Chosen: m == v.form.Get("method")})
	}
	p.Forms = []panelForm{v.newForm("/console/access/explain", v.T("Explain"), field{Label: v.T("Token"), Name: "token", Kind: "password", Wide: true, Required: true}, verbs, field{Label: v.T("Path"), Name: "path", Value: v.form.Get("path"), Hint: "/Patient/1"})}
	return v.showPanel("access", v.T("Explain a token"), p)
}
