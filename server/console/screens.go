package console

import (
	"net/http"
	"net/url"
	"strings"
)

// mainScreen is a link of the navigation Main.
type mainScreen struct {
	name, path string
	admin      bool
	screens    []string // templates that it is current for
}

var mainScreens = []mainScreen{
	{"Overview", "/console", false, []string{"overview"}},
	{"Resources", "/console/resources", false, []string{"resources", "search", "resource", "json", "references", "history", "version", "edit", "patient"}},
	{"Terminology", "/console/terminology", false, []string{"terminology"}},
	{"FHIRPath", "/console/fhirpath", false, []string{"fhirpath"}},
	{"Requests", "/console/requests", false, []string{"requests"}},
	{"Subscriptions", "/console/subscriptions", true, []string{"subscriptions", "deliveries", "delivery", "live"}},
	{"Apps", "/console/apps", true, []string{"apps", "app"}},
	{"Jobs", "/console/jobs", true, []string{"jobs"}},
	{"Definitions", "/console/definitions", true, []string{"definitions"}},
	{"Access", "/console/access", true, []string{"access"}},
	{"Settings", "/console/settings", true, []string{"settings"}},
	{"Searches", "/console/searches", true, []string{"searches"}},
	{"Audit", "/console/audit", true, []string{"audit"}},
	{"Views", "/console/views", true, []string{"views"}},
}

// route shows the page of the path.
func (v *visit) route() error {
	path := strings.TrimPrefix(strings.TrimPrefix(v.r.URL.EscapedPath(), "/console"), "/")
	var parts []string
	if path != "" {
		parts = strings.Split(path, "/")
	}
	for i, p := range parts {
		plain, err := url.PathUnescape(p)
		if err != nil || plain == "" {
			return errNoPage
		}
		parts[i] = plain
	}
	post := v.r.Method == http.MethodPost
	first := ""
	if len(parts) > 0 {
		first = parts[0]
	}
	// Pages without a session.
	switch {
	case first == "capabilities" && len(parts) == 1 && !post:
		return v.capabilities()
	case first == "callback" && len(parts) == 1 && v.c.Auth != nil && !post:
		return v.callback()
	case first == "language" && len(parts) == 1 && post:
		return v.chooseLanguage()
	}
	if !v.signedIn() {
		v.beginSignIn(v.r.URL.RequestURI())
		return nil
	}
	for _, s := range v.c.routes {
		if s.first != first || s.parts >= 0 && s.parts != max(0, len(parts)-1) {
			continue
		}
		if s.post && !post || !s.post && post && !s.both {
			continue
		}
		if s.admin && !v.Admin() {
			return v.notAllowed()
		}
		return s.show(v, parts[min(1, len(parts)):])
	}
	if len(parts) > 0 && v.c.Service.Model.Resources[parts[0]] != nil {
		return v.resource(parts)
	}
	return errNoPage
}

// route is a page by the first segment of its path.
type route struct {
	first string
	parts int // segments behind the first, -1 for any number
	admin bool
	post  bool // the page takes forms only
	both  bool // the page takes forms too
	show  func(v *visit, parts []string) error
}

// screenRoutes are the pages that need a session. A path whose first segment is a resource type has the pages of resource.go.
func screenRoutes() []route {
	return []route{
		{first: "", parts: 0, show: (*visit).overview},
		{first: "resources", parts: 0, show: (*visit).resources},
		{first: "resources", parts: 1, show: (*visit).searchType},
		{first: "search", parts: 0, post: true, show: (*visit).changeSearch},
		{first: "search", parts: 1, show: (*visit).searchSealed},
		{first: "suggest", parts: 1, post: true, show: (*visit).suggest},
		{first: "go", parts: 0, post: true, show: (*visit).goTo},
		{first: "fhirpath", parts: 0, show: (*visit).fhirpath, both: true},
		{first: "requests", parts: 0, post: true, show: (*visit).sendForm},
		{first: "requests", parts: 0, show: (*visit).requests},
		{first: "requests", parts: 1, show: (*visit).requests},
		{first: "terminology", parts: 0, show: (*visit).terminology},
		{first: "subscriptions", parts: 0, admin: true, show: (*visit).subscriptions},
		{first: "deliveries", parts: 1, admin: true, both: true, show: (*visit).delivery},
		{first: "live", parts: 0, admin: true, show: (*visit).live},
		{first: "live", parts: 1, admin: true, show: (*visit).liveEvents},
		{first: "apps", parts: 0, admin: true, show: (*visit).apps},
		{first: "jobs", parts: 0, admin: true, post: true, show: (*visit).changeJobs},
		{first: "jobs", parts: 0, admin: true, show: (*visit).jobs},
		{first: "jobs", parts: 1, admin: true, show: (*visit).job},
		{first: "jobs", parts: 2, show: (*visit).downloadFile},
		{first: "definitions", parts: 0, admin: true, both: true, show: (*visit).definitions},
		{first: "definitions", parts: 3, admin: true, both: true, show: (*visit).removePackage},
		{first: "access", parts: -1, admin: true, both: true, show: (*visit).access},
		{first: "settings", parts: 0, admin: true, post: true, show: (*visit).switchFeature},
		{first: "settings", parts: 0, admin: true, show: (*visit).settings},
		{first: "settings", parts: 1, admin: true, both: true, show: (*visit).setting},
		{first: "searches", parts: 0, admin: true, both: true, show: (*visit).searches},
		{first: "audit", parts: 0, admin: true, both: true, show: (*visit).audit},
		{first: "audit", parts: 1, admin: true, show: (*visit).audit},
		{first: "views", parts: 0, admin: true, both: true, show: (*visit).views},
		{first: "views", parts: 1, admin: true, both: true, show: (*visit).view},
		{first: "views", parts: 2, admin: true, both: true, show: (*visit).view},
		{first: "account", parts: -1, both: true, show: (*visit).account},
		{first: "sign-out", parts: 0, post: true, show: func(v *visit, _ []string) error { return v.signOut() }},
	}
}
