package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/server/web"
)

// HasPage reports whether a path of FHIR has a page for browsers.
func (c *Console) HasPage(path string) bool {
	if path == "/" || path == "/metadata" {
		return c.Settings().Enabled
	}
	first, _, _ := strings.Cut(path[1:], "/")
	if first == "" || !c.Settings().Enabled {
		return false
	}
	return first[0] == '_' || first[0] == '$' || c.Service.Model.Resources[first] != nil
}

// HasContent reports whether a path is that of a Binary: FHIR gives a browser its content
// (R4 binary.html, section RESTful interaction).
func (c *Console) HasContent(path string) bool {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	return parts[0] == "Binary" && isResourcePath(parts) && len(parts) != 3
}

// ServePage answers a browser that opens a FHIR address.
func (c *Console) ServePage(x *web.Exchange, r *http.Request) {
	query := r.URL.Query()
	query.Del("_format")
	c.visit(x, r, func(v *visit) error {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		isType := c.Service.Model.Resources[parts[0]] != nil
		switch {
		case r.URL.Path == "/" && len(query) == 0:
			return v.home()
		case r.URL.Path == "/metadata" && len(query) == 0:
			v.redirect("/console/capabilities")
		case isType && len(parts) == 1:
			v.redirect(v.searchAddress(searchState{Type: parts[0], Query: encodeQuery(r.URL.RawQuery)}))
		case isType && len(query) == 0 && isResourcePath(parts):
			to := "/console/" + parts[0] + "/" + escape(parts[1])
			if len(parts) > 2 {
				to += "/history"
			}
			if len(parts) > 3 {
				to += "/" + escape(parts[3])
			}
			v.redirect(to)
		default:
			v.redirect("/console/requests/" + c.seal.seal("request", r.URL.Path+queryOf(query)))
		}
		return nil
	})
}

// isResourcePath reports whether a path is Type/id, Type/id/_history or Type/id/_history/version.
func isResourcePath(parts []string) bool {
	if len(parts) < 2 || len(parts) > 4 || strings.HasPrefix(parts[1], "_") || strings.HasPrefix(parts[1], "$") {
		return false
	}
	return len(parts) == 2 || parts[2] == "_history"
}

// queryOf is a query string with its question mark, "" without parameters.
func queryOf(q url.Values) string {
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// encodeQuery is a query string without _format, in the order in which it was written.
func encodeQuery(raw string) string {
	parts := slices.DeleteFunc(strings.Split(raw, "&"), func(p string) bool { return p == "" || p == "_format" || strings.HasPrefix(p, "_format=") })
	return strings.Join(parts, "&")
}

// home is the page of the server's root.
func (v *visit) home() error {
	data := struct {
		Ready  bool
		Signed bool
	}{v.c.Ready(v.r.Context()) == nil, v.signedIn()}
	return v.show("home", v.Server(), "", data)
}

// capability is the part of the CapabilityStatement that the console shows.
type capability struct {
	FHIRVersion  string `json:"fhirVersion"`
	Software     struct{ Name, Version string }
	Format       []string
	Instantiates []string
	Rest         []struct {
		Security struct {
			Service []struct{ Coding []struct{ Code string } }
		}
		Resource []struct {
			Type        string
			Interaction []struct{ Code string }
			SearchParam []struct{ Name string }
			Operation   []struct{ Name string }
		}
		Operation []struct{ Name string }
	}
}

// capabilities shows the CapabilityStatement.
func (v *visit) capabilities() error {
	var c capability
	if err := v.get("/metadata", &c); err != nil {
		return err
	}
	t := table{Name: v.T("Resource types"), Head: columns(v.T("Type"), v.T("Interactions"), "#"+v.T("Search parameters"), v.T("Operations"))}
	var operations []string
	for _, rest := range c.Rest {
		for _, o := range rest.Operation {
			operations = append(operations, "$"+o.Name)
		}
		for _, r := range rest.Resource {
			var interactions, own []string
			for _, i := range r.Interaction {
				interactions = append(interactions, i.Code)
			}
			for _, o := range r.Operation {
				own = append(own, "$"+o.Name)
			}
			head := cell{Text: r.Type, Head: true}
			if v.signedIn() {
				head.Link = "/console/resources/" + r.Type
			}
			t.Rows = append(t.Rows, []cell{head, textCell(strings.Join(interactions, ", ")), v.numberCell(int64(len(r.SearchParam))), textCell(strings.Join(own, ", "))})
		}
	}
	return v.show("capabilities", v.T("Capabilities"), "", struct {
		capability
		Operations []string
		Types      table
	}{c, operations, t})
}
