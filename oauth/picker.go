package oauth

import (
	"net/http"
	"slices"
	"time"

	"kiln/oauth/storage"
	"kiln/server/access"
	"kiln/server/smart"
)

// pickerPrincipal is the principal that searches patients and encounters: it sees all that the user
// may see, even if the app is granted less.
func pickerPrincipal(u *storage.User, c *storage.Client) *access.Principal {
	scopes, _ := smart.Parse("user/Patient.rs user/Encounter.rs")
	return &access.Principal{
		Subject: u.Username, ClientID: c.ID, Scopes: scopes, FHIRUser: u.FHIRUser, Roles: u.Roles, Unbound: u.Unbound(),
		SessionID: "picker", // a signed-in user, with any client
	}
}

func (s *Server) pickPatient(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User, text, birthDate string) error {
	p := s.newPage(r, "Choose a patient")
	p.Query, p.BirthDate, p.User = text, birthDate, u
	if f.unchosen {
		p.Problem = p.T("Choose one of these patients, or search for another.")
	}
	if birthDate != "" && !isDate(birthDate) {
		p.BirthDate, p.BadDate = clipText(birthDate), p.T("The date of birth is no date: expected YYYY-MM-DD.")
		birthDate = "" // the rest of the search counts
	}
	var err error
	if p.Patients, err = s.Records.Patients(r.Context(), pickerPrincipal(u, c), text, birthDate); err != nil {
		return err
	}
	return s.showPage(w, r, f, c, http.StatusOK, "patient", p)
}

func (s *Server) pickEncounter(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User) error {
	p := s.newPage(r, "Choose an encounter")
	p.User = u
	if f.unchosen {
		p.Problem = p.T("Choose one of these encounters.")
	}
	var err error
	if p.Encounters, err = s.Records.Encounters(r.Context(), pickerPrincipal(u, c), f.Context.Patient); err != nil {
		return err
	}
	return s.showPage(w, r, f, c, http.StatusOK, "encounter", p)
}

// mayPickAgain reports whether the user may go back in the browser and choose another
// patient. The consent ends that.
func (f *flow) mayPickAgain() bool { return f.Picked && !f.Consented }

// chooseRecord takes the choice of a picker, if the user may see it.
func (s *Server) chooseRecord(w http.ResponseWriter, r *http.Request, f *flow, c *storage.Client, u *storage.User, typ, id string) {
	ctx := r.Context()
	if typ == "Patient" && f.Context.Patient != "" && !f.mayPickAgain() || typ == "Encounter" && (f.Context.Patient == "" || f.Context.Encounter != "") {
		s.advanceFlow(w, r, f, c)
		return
	}
	ok := false
	if logicalID.MatchString(id) {
		var err error
		if typ == "Patient" {
			ok, err = s.Records.Sees(ctx, pickerPrincipal(u, c), typ, id)
		} else {
			var list []Encounter
			list, err = s.Records.Encounters(ctx, pickerPrincipal(u, c), f.Context.Patient)
			ok = slices.ContainsFunc(list, func(e Encounter) bool { return e.ID == id })
		}
		if err != nil {
			s.failUnexpected(w, r, err)
			return
		}
	}
	if !ok {
		// The page again. Hidden and absent patients give the same text.
		f.unchosen = true
		s.advanceFlow(w, r, f, c)
		return
	}
	if typ == "Patient" {
		if f.Context.Patient != id { // the encounter belongs to the patient of before
			f.Context.Encounter, f.NoVisit = "", false
		}
		f.Context.Patient, f.Picked = id, true
	} else {
		f.Context.Encounter = id
	}
	s.advanceFlow(w, r, f, c)
}

func isDate(text string) bool {
	_, err := time.Parse(time.DateOnly, text)
	return err == nil
}
