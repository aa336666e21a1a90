package interaction

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/patch"
	"kiln/server/search"
)

// metadata caches the capability statement of a registry, before and behind the
// URL of the service, which may depend on the request.
type metadata struct {
	mu            sync.Mutex
	of            *search.Registry
	operations    int64 // their version
	before, after []byte
}

// CapabilitiesParams are the inputs of the capabilities interaction.
type CapabilitiesParams struct {
	Values  url.Values // mode, _summary, _elements
	BaseURL string     // of the service as the client sees it, without a trailing slash
}

// Capabilities returns the CapabilityStatement: what this server serves, from
// the tables that serve it. Mode terminology asks for the TerminologyCapabilities;
// mode normative for what is normative, which here is all.
// Spec: https://hl7.org/fhir/R4/http.html#capabilities.
func (s *Service) Capabilities(_ context.Context, p CapabilitiesParams) (Response, error) {
	base := s.Facts.URL
	if base == "" {
		base = p.BaseURL
	}
	v := fhir.Version{ResourceType: "CapabilityStatement"}
	var err error
	switch mode := p.Values.Get("mode"); mode {
	case "", "full", "normative":
		v.Body, err = s.capabilityBody(base)
	case "terminology":
		v.ResourceType = "TerminologyCapabilities"
		v.Body, err = json.Marshal(s.terminologyCapabilities(base))
	default:
		err = outcome.Invalid("mode is %q: expected full, normative or terminology", clip(mode))
	}
	if err != nil {
		return Response{}, err
	}
	cut, err := s.Subset(Response{Version: v}, p.Values)
	return Response{Status: http.StatusOK, Body: cut.Version.Body}, err
}

// capabilityBody is the capability statement of the service at base.
func (s *Service) capabilityBody(base string) ([]byte, error) {
	const mark = "urn:kiln:base"
	reg := s.Parameters.Current()
	if err := reg.Err(); err != nil {
		return nil, err
	}
	s.metadata.mu.Lock()
	defer s.metadata.mu.Unlock()
	if version := s.operationsVersion(); s.metadata.of != reg || s.metadata.operations != version {
		body, err := json.Marshal(s.capabilityStatement(reg, mark))
		if err != nil {
			return nil, fmt.Errorf("capability statement: %w", err)
		}
		s.metadata.of, s.metadata.operations = reg, version
		s.metadata.before, s.metadata.after, _ = bytes.Cut(body, []byte(`"`+mark+`"`))
	}
	body := make([]byte, 0, len(s.metadata.before)+len(base)+2+len(s.metadata.after))
	body = append(body, s.metadata.before...)
	body = fhir.AppendString(body, base)
	return append(body, s.metadata.after...), nil
}

// The parts of a CapabilityStatement that the service fills in.
type (
	capabilityStatement struct {
		ResourceType   string         `json:"resourceType"`
		Status         string         `json:"status"`
		Date           string         `json:"date"`
		Kind           string         `json:"kind"`
		Software       software       `json:"software"`
		Implementation implementation `json:"implementation"`
		FHIRVersion    string         `json:"fhirVersion"`
		Format         []string       `json:"format"`
		PatchFormat    []string       `json:"patchFormat"`
		Rest           []capRest      `json:"rest"`
	}
	software struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	implementation struct {
		Description string `json:"description"`
		URL         string `json:"url"`
	}
	capRest struct {
		Mode          string         `json:"mode"`
		Documentation string         `json:"documentation,omitempty"`
		Resource      []capResource  `json:"resource"`
		Interaction   []capCode      `json:"interaction"`
		SearchParam   []capParameter `json:"searchParam"`
		Operation     []capOperation `json:"operation,omitempty"`
		Compartment   []string       `json:"compartment,omitempty"`
	}
	capCode struct {
		Code string `json:"code"`
	}
	capResource struct {
		Type              string         `json:"type"`
		Profile           string         `json:"profile"`
		SupportedProfile  []string       `json:"supportedProfile,omitempty"`
		Interaction       []capCode      `json:"interaction"`
		Versioning        string         `json:"versioning"`
		ReadHistory       bool           `json:"readHistory"`
		UpdateCreate      bool           `json:"updateCreate"`
		ConditionalCreate bool           `json:"conditionalCreate"`
		ConditionalRead   string         `json:"conditionalRead"`
		ConditionalUpdate bool           `json:"conditionalUpdate"`
		ConditionalDelete string         `json:"conditionalDelete"`
		ReferencePolicy   []string       `json:"referencePolicy"`
		SearchInclude     []string       `json:"searchInclude"`
		SearchRevInclude  []string       `json:"searchRevInclude"`
		SearchParam       []capParameter `json:"searchParam"`
		Operation         []capOperation `json:"operation,omitempty"`
	}
	capParameter struct {
		Name          string `json:"name"`
		Definition    string `json:"definition,omitempty"`
		Type          string `json:"type"`
		Documentation string `json:"documentation,omitempty"`
	}
	capOperation struct {
		Name       string `json:"name"`
		Definition string `json:"definition"`
	}
)

const description = "Kiln, a FHIR R4 server compiled from its definitions"

// common are the parameters of every type that are no entries of the index.
var common = []capParameter{
	{"_id", "http://hl7.org/fhir/SearchParameter/Resource-id", "token", "Logical id of this artifact"},
	{"_lastUpdated", "http://hl7.org/fhir/SearchParameter/Resource-lastUpdated", "date", "When the resource version last changed"},
	{"_list", "", "special", "Members of the List with this id"},
	{"_has", "", "special", "Reverse chaining: resources that others refer to"},
	{"_filter", "http://hl7.org/fhir/SearchParameter/filter", "special", "Comparisons joined by and, or, not and parentheses"},
}

func codes(list ...string) []capCode {
	out := make([]capCode, len(list))
	for i, c := range list {
		out[i].Code = c
	}
	return out
}

func (s *Service) capabilityStatement(reg *search.Registry, base string) capabilityStatement {
	c := capabilityStatement{
		ResourceType: "CapabilityStatement", Status: "active", Date: s.Facts.Date, Kind: "instance",
		Software:       software{"Kiln", s.Facts.Version},
		Implementation: implementation{description, base},
		FHIRVersion:    "4.0.1",
		Format:         []string{"application/fhir+json", "application/json", "json"},
		PatchFormat:    []string{patch.JSONType, "application/fhir+json"},
		Rest: []capRest{{
			Mode:        "server",
			Interaction: codes("transaction", "batch", "search-system", "history-system"),
			SearchParam: append([]capParameter{{"_type", "", "special", "Resource types to search"}}, common...),
			Compartment: []string{},
		}},
	}
	rest := &c.Rest[0]
	for _, code := range []string{"Device", "Encounter", "Patient", "Practitioner", "RelatedPerson"} {
		if _, ok := reg.Compartment(code); ok {
			rest.Compartment = append(rest.Compartment, "http://hl7.org/fhir/CompartmentDefinition/"+strings.ToLower(code[:1])+code[1:])
		}
	}
	rest.Operation = s.operationsOf("")
	pointers := pointersTo(reg)
	var own []string
	for _, typ := range reg.Types() {
		r := s.capabilities(reg, typ, pointers[typ])
		if !strings.HasPrefix(r.Profile, "http://hl7.org/fhir/") {
			// The binding of rest.resource.type leaves no room for a type of our own.
			own = append(own, fmt.Sprintf("%s (%s)", typ, r.Profile))
			continue
		}
		rest.Resource = append(rest.Resource, r)
	}
	if own != nil {
		rest.Documentation = "Served like the resource types of FHIR: " + strings.Join(own, ", ") + "."
	}
	return c
}

func (s *Service) capabilities(reg *search.Registry, typ string, revIncludes []string) capResource {
	r := capResource{
		Type:    typ,
		Profile: "http://hl7.org/fhir/StructureDefinition/" + typ,
		Interaction: codes("read", "vread", "update", "patch", "delete", "history-instance", "history-type",
			"create", "search-type"),
		Versioning: "versioned", ReadHistory: true, UpdateCreate: !s.RefuseUpdateCreate,
		ConditionalCreate: true, ConditionalRead: "full-support", ConditionalUpdate: true, ConditionalDelete: "single",
		ReferencePolicy:  []string{"literal", "logical"},
		SearchInclude:    []string{"*"},
		SearchRevInclude: append([]string{"*"}, revIncludes...),
		SearchParam:      slices.Clone(common),
	}
	for _, p := range reg.Parameters(typ) {
		if !search.Supported(p) || slices.ContainsFunc(common, func(c capParameter) bool { return c.Name == p.Code }) {
			continue
		}
		r.SearchParam = append(r.SearchParam, capParameter{p.Code, p.URL, string(p.Type), p.Description})
		if p.Type == fhir.SearchReference {
			r.SearchInclude = append(r.SearchInclude, typ+":"+p.Code)
		}
	}
	r.Operation = s.operationsOf(typ)
	if profiles := s.Facts.Profiles[typ]; len(profiles) > 0 {
		r.Profile, r.SupportedProfile = profiles[0], profiles[1:]
	}
	return r
}

// operationsOf lists the operations of a type, or with "" of the system, by name.
func (s *Service) operationsOf(typ string) []capOperation {
	var out []capOperation
	for _, o := range s.listed(typ) {
		out = append(out, capOperation{o.Name, o.Definition})
	}
	return out
}

// pointersTo lists, for each type, the reference parameters that are declared to
// point at it: "Observation:subject". Those that may point anywhere are left out;
// `*` stands for them.
func pointersTo(reg *search.Registry) map[string][]string {
	out := make(map[string][]string)
	for _, typ := range reg.Types() {
		for _, p := range reg.Parameters(typ) {
			if p.Type != fhir.SearchReference || !search.Supported(p) {
				continue
			}
			for _, target := range p.Targets {
				out[target] = append(out[target], typ+":"+p.Code)
			}
		}
	}
	return out
}
