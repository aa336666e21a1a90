package console

import (
	"net/http"
	"strings"

	"kiln/oauth"
	"kiln/server/outcome"
)

// account shows the apps, the sessions and the password form of the person.
func (v *visit) account(parts []string) error {
	if v.c.Auth == nil {
		return v.problem(http.StatusNotFound, "Authorization is off: there are no users and clients.")
	}
	user := v.principal.Subject
	list, err := v.c.Auth.OwnGrants(v.r.Context(), user)
	if err != nil {
		return err
	}
	if len(parts) == 2 && parts[0] == "revoke" {
		return v.revokeOwn(user, parts[1], list)
	}
	if len(parts) > 0 {
		return errNoPage
	}
	p := panel{}
	if v.r.Method == http.MethodPost {
		switch v.form.Get("action") {
		case "everywhere":
			if err := v.c.Auth.LeaveConsoleEverywhere(v.r, user); err != nil {
				return err
			}
			v.setCookie(sessionCookie, "", -1)
			v.redirect("/auth/logout")
			return nil
		case "password":
			err := v.c.Auth.ChangeOwnPassword(v.r, user, v.form.Get("current"), v.form.Get("chosen"))
			if err == nil {
				v.setCookie(sessionCookie, "", -1)
				v.redirect("/console")
				return nil
			}
			e, known := outcome.From(err)
			if !known {
				return err
			}
			v.status, v.Alerts = e.HTTPStatus(), []string{e.Error()}
		default:
			return errNoPage
		}
	}
	apps := table{Name: v.T("Apps with access to my data"), Head: columns(v.T("App"), v.T("May"), v.T("Since"), v.T("Action"))}
	for _, g := range list {
		apps.Rows = append(apps.Rows, []cell{{Text: g.Name, Head: true}, {Text: strings.Join(g.Scopes, " "), Class: "wrap"}, timeCell(&g.Since), {Buttons: []button{ask(v.T("Revoke access for %s", g.Name), "/console/account/revoke/"+escape(g.Client))}}})
	}
	if len(apps.Rows) == 0 {
		apps.More = v.T("There are none.")
	}
	open, err := v.c.Auth.Sessions(v.r.Context(), user, v.c.Settings().Times)
	if err != nil {
		return err
	}
	sessions := table{Name: v.T("Sessions"), Head: columns(v.T("Started"), v.T("Last active"), v.T("Address"), v.T("Session"))}
	for _, s := range open {
		started, which := timeCell(&s.Started), ""
		started.Head = true
		if s.ID == v.session.Session {
			which = v.T("this one")
		}
		sessions.Rows = append(sessions.Rows, []cell{started, timeCell(&s.LastActive), textCell(s.Address), textCell(which)})
	}
	p.Tables = []table{apps, sessions}
	p.Facts = [][2]string{{v.T("User name"), user}, {v.T("Name"), v.session.Name}}
	if v.principal.FHIRUser != "" {
		p.Facts = append(p.Facts, [2]string{v.T("FHIR user"), v.principal.FHIRUser})
	}
	p.Buttons = []button{v.post(v.T("Sign out everywhere"), "/console/account", "action", "everywhere")}
	f := v.newForm("/console/account", v.T("Change password"), field{Label: v.T("Current password"), Name: "current", Kind: "password", Required: true, Complete: "current-password"},
		field{Label: v.T("New password"), Name: "chosen", Kind: "password", Required: true, Complete: "new-password", Hint: v.T("At least 12 characters. All your sessions end.")})
	f.Hidden, f.Username = [][2]string{{"action", "password"}}, user
	p.Forms = []panelForm{f}
	return v.showPanel("account", v.T("Account"), p)
}

// revokeOwn asks, and ends the access of an app to the person's data.
func (v *visit) revokeOwn(user, client string, list []oauth.OwnGrant) error {
	for _, g := range list {
		if g.Client != client {
			continue
		}
		if v.r.Method == http.MethodPost {
			if err := v.c.Auth.RevokeOwnGrant(v.r, user, client); err != nil {
				return err
			}
			return v.done("/console/account", v.T("%s has no access any more.", g.Name))
		}
		return v.confirm(v.T("Account"), v.T("Revoke access for %s?", g.Name), v.T("The app loses its access to your data at once."), v.T("Revoke access for %s", g.Name), "/console/account/revoke/"+escape(client), "/console/account")
	}
	if v.r.Method == http.MethodPost { // a second click
		v.redirect("/console/account")
		return nil
	}
	return errNoPage
}
