package interaction

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"kiln/gen/r4"
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
	profiles      int64 // their version
	uris          map[string]string
	cors          bool
	topics        []string
	guides        Guides
	instantiates  []string
	bulk          [2]bool // $export and $import are served
	before, after []byte
}

// CapabilitiesParams are the inputs of the capabilities interaction.
type CapabilitiesParams struct {
	Values  url.Values // mode, _summary, _elements
	BaseURL string     // of the service as the client sees it, without a trailing slash
}

// Capabilities returns the CapabilityStatement, made from the tables that serve requests.
// Mode terminology asks for the TerminologyCapabilities; mode normative for the normative
// part, which is the whole statement here.
// Spec: https://hl7.org/fhir/R4/http.html#capabilities.
func (s *Service) Capabilities(ctx context.Context, p CapabilitiesParams) (Response, error) {
	base := s.Facts.URL
	if base == "" {
		base = p.BaseURL
	}
	v := fhir.Version{ResourceType: "CapabilityStatement"}
	var err error
	switch mode := p.Values.Get("mode"); mode {
	case "", "full", "normative":
		v.Body, err = s.capabilityBody(ctx, base)
	case "terminology":
		v.ResourceType = "TerminologyCapabilities"
		v.Body, err = json.Marshal(s.terminologyCapabilities(base))
	default:
		err = outcome.Invalid("mode is %q: expected full, normative or terminology", outcome.Clip(mode))
	}
	if err != nil {
		return Response{}, err
	}
	cut, err := s.Subset(Response{Version: v}, p.Values)
	return Response{Status: http.StatusOK, Body: cut.Version.Body, Tagged: true}, err
}

// capabilityBody is the capability statement of the service at base.
func (s *Service) capabilityBody(ctx context.Context, base string) ([]byte, error) {
	const mark = "urn:kiln:base"
	reg := s.Parameters.Current()
	if err := reg.Err(); err != nil {
		return nil, err
	}
	s.metadata.mu.Lock()
	defer s.metadata.mu.Unlock()
	var profiles map[string][]string
	var profilesVersion int64
	if s.StoredProfiles != nil {
		var err error
		if profiles, profilesVersion, err = s.StoredProfiles(ctx); err != nil {
			return nil, fmt.Errorf("stored profiles: %w", err)
		}
	}
	var uris map[string]string
	if s.Facts.OAuthURIs != nil {
		uris = s.Facts.OAuthURIs()
	}
	cors := s.Facts.CORS != nil && s.Facts.CORS()
	bulk := [2]bool{s.exports("Patient") != nil, s.Facts.Import != nil && s.Facts.Import()}
	var topics []string
	if s.Facts.Topics != nil {
		var err error
		if topics, err = s.Facts.Topics(ctx); err != nil {
			return nil, fmt.Errorf("topics of subscriptions: %w", err)
		}
	}
	var guides Guides
	if s.Facts.Guides != nil {
		var err error
		if guides, err = s.Facts.Guides(ctx); err != nil {
			return nil, fmt.Errorf("guides of packages: %w", err)
		}
	}
	var instantiates []string
	if s.Facts.Instantiates != nil {
		instantiates = s.Facts.Instantiates()
	}
	sameGuides := slices.Equal(s.metadata.guides.Requirements, guides.Requirements) && slices.Equal(s.metadata.guides.Guides, guides.Guides) &&
		slices.Equal(s.metadata.instantiates, instantiates)
	if version := s.operationsVersion(); !sameGuides || s.metadata.of != reg || s.metadata.cors != cors || s.metadata.bulk != bulk || !slices.Equal(s.metadata.topics, topics) || s.metadata.operations != version || s.metadata.profiles != profilesVersion || !maps.Equal(s.metadata.uris, uris) {
		c := s.capabilityStatement(reg, profiles, security(uris, cors), topics, mark)
		nameGuides(c, guides, instantiates)
		body := fhir.Encode(nil, c)
		s.metadata.guides, s.metadata.instantiates = guides, instantiates
		s.metadata.of, s.metadata.operations, s.metadata.profiles, s.metadata.uris, s.metadata.cors, s.metadata.topics, s.metadata.bulk = reg, version, profilesVersion, uris, cors, topics, bulk
		s.metadata.before, s.metadata.after, _ = bytes.Cut(body, []byte(`"`+mark+`"`))
	}
	body := make([]byte, 0, len(s.metadata.before)+len(base)+2+len(s.metadata.after))
	body = append(body, s.metadata.before...)
	body = fhir.AppendString(body, base)
	return append(body, s.metadata.after...), nil
}

const description = "Kiln, a FHIR R4 server compiled from its definitions"

// common are the parameters of every type that are no entries of the index.
var common = []fhir.Parameter{
	{Code: "_id", URL: "http://hl7.org/fhir/SearchParameter/Resource-id", Type: fhir.SearchToken, Description: "Logical id of this artifact"},
	{Code: "_lastUpdated", URL: "http://hl7.org/fhir/SearchParameter/Resource-lastUpdated", Type: fhir.SearchDate, Description: "When the resource version last changed"},
	{Code: "_list", Type: fhir.SearchSpecial, Description: "Members of the List with this id"},
	{Code: "_has", Type: fhir.SearchSpecial, Description: "Reverse chaining: resources that others refer to"},
	{Code: "_filter", Type: fhir.SearchSpecial, Description: "Comparisons joined by and, or, not and parentheses"},
}

// The generated models hold texts as structs.
func text(s string) fhir.Primitive        { return fhir.Primitive{Text: s} }
func codeOf(s string) fhir.Code           { return fhir.Code{Primitive: text(s)} }
func stringOf(s string) fhir.String       { return fhir.String{Primitive: text(s)} }
func canonicalOf(s string) fhir.Canonical { return fhir.Canonical{Primitive: text(s)} }

func booleanOf(b bool) fhir.Boolean {
	if b {
		return fhir.Boolean{Primitive: text("true")}
	}
	return fhir.Boolean{Primitive: text("false")}
}

// each makes a list of what of makes of each text.
func each[T any](of func(string) T, list ...string) []T {
	out := make([]T, len(list))
	for i, s := range list {
		out[i] = of(s)
	}
	return out
}

// security is rest.security of a service that lets pages of other origins call, or not,
// with the endpoints of an authorization server, if it has one.
// Spec: SMART App Launch 1.0, conformance; http://hl7.org/fhir/R4/valueset-restful-security-service.html.
func security(endpoints map[string]string, cors bool) *r4.CapabilityStatementRestSecurity {
	if len(endpoints) == 0 {
		return &r4.CapabilityStatementRestSecurity{Cors: booleanOf(cors)}
	}
	uris := fhir.Extension{URL: fhir.SystemString{Primitive: text("http://fhir-registry.smarthealthit.org/StructureDefinition/oauth-uris")}}
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		uris.Extension = append(uris.Extension, fhir.Extension{
			URL: fhir.SystemString{Primitive: text(name)}, Value: &fhir.URI{Primitive: text(endpoints[name])},
		})
	}
	return &r4.CapabilityStatementRestSecurity{
		Extension: []fhir.Extension{uris},
		Cors:      booleanOf(cors),
		Service: []r4.CodeableConcept{{
			Coding: []r4.Coding{{
				System: fhir.URI{Primitive: text("http://terminology.hl7.org/CodeSystem/restful-security-service")}, Code: codeOf("SMART-on-FHIR"), Display: stringOf("SMART-on-FHIR"),
			}},
			Text: stringOf("OAuth2 using SMART-on-FHIR profile (see http://docs.smarthealthit.org)"),
		}},
	}
}

// capabilityStatement is the statement of the service at base. profiles are those
// that are stored, by resource type. topics are the topics that Subscriptions may name.
func (s *Service) capabilityStatement(reg *search.Registry, profiles map[string][]string, security *r4.CapabilityStatementRestSecurity, topics []string, base string) *r4.CapabilityStatement {
	c := &r4.CapabilityStatement{
		Status: codeOf("active"), Date: fhir.DateTime{Primitive: text(s.Facts.Date)}, Kind: codeOf("instance"),
		Software:       &r4.CapabilityStatementSoftware{Name: stringOf("Kiln"), Version: stringOf(s.Facts.Version)},
		Implementation: &r4.CapabilityStatementImplementation{Description: stringOf(description), URL: fhir.URL{Primitive: text(base)}},
		FHIRVersion:    codeOf("4.0.1"),
		Format:         each(codeOf, "application/fhir+json", "application/json", "json"),
		PatchFormat:    each(codeOf, patch.JSONType, "application/fhir+json"),
		Rest: []r4.CapabilityStatementRest{{
			Mode: codeOf("server"),
			Interaction: each(func(code string) r4.CapabilityStatementRestInteraction {
				return r4.CapabilityStatementRestInteraction{Code: codeOf(code)}
			}, "transaction", "batch", "search-system", "history-system"),
		}},
	}
	if s.exports("Patient") != nil {
		c.Instantiates = each(canonicalOf, "http://hl7.org/fhir/uv/bulkdata/CapabilityStatement/bulk-data")
	}
	rest := &c.Rest[0]
	rest.Security = security
	rest.SearchParam = []r4.CapabilityStatementRestResourceSearchParam{searchParam(&fhir.Parameter{Code: "_type", Type: fhir.SearchSpecial, Description: "Resource types to search"})}
	for i := range common {
		rest.SearchParam = append(rest.SearchParam, searchParam(&common[i]))
	}
	for _, code := range []string{"Device", "Encounter", "Patient", "Practitioner", "RelatedPerson"} {
		if _, ok := reg.Compartment(code); ok {
			rest.Compartment = append(rest.Compartment, canonicalOf("http://hl7.org/fhir/CompartmentDefinition/"+strings.ToLower(code[:1])+code[1:]))
		}
	}
	rest.Operation = s.operationsOf("")
	pointers := pointersTo(reg)
	var own []string
	for _, typ := range reg.Types() {
		r := s.capabilities(reg, typ, pointers[typ], profiles[typ])
		if !strings.HasPrefix(r.Profile.Text, "http://hl7.org/fhir/StructureDefinition/") || slices.Contains(laterTypes, typ) {
			// The binding of rest.resource.type has R4's types alone.
			for _, o := range r.Operation {
				if !slices.ContainsFunc(rest.Operation, func(other r4.CapabilityStatementRestResourceOperation) bool {
					return other.Definition.Text == o.Definition.Text
				}) {
					rest.Operation = append(rest.Operation, o)
				}
			}
			own = append(own, fmt.Sprintf("%s (%s)", typ, r.Profile.Text))
			continue
		}
		if typ == "Subscription" && s.Facts.Topics != nil {
			declareTopics(&r, topics)
			c.Instantiates = append(c.Instantiates, canonicalOf(backportGuide+"CapabilityStatement/backport-subscription-server-r4"))
		}
		rest.Resource = append(rest.Resource, r)
	}
	if own != nil {
		rest.Documentation.Text = "Served like the resource types of FHIR: " + strings.Join(own, ", ") + "."
	}
	return c
}

// nameGuides adds the requirements and guides of packages to a statement. A list of configured canonicals
// takes the place of all others in instantiates.
// Spec: https://hl7.org/fhir/R4/capabilitystatement-definitions.html#CapabilityStatement.instantiates.
func nameGuides(c *r4.CapabilityStatement, guides Guides, configured []string) {
	for _, url := range guides.Requirements {
		if !slices.ContainsFunc(c.Instantiates, func(v fhir.Canonical) bool { return v.Text == url }) {
			c.Instantiates = append(c.Instantiates, canonicalOf(url))
		}
	}
	if len(configured) > 0 {
		c.Instantiates = each(canonicalOf, configured...)
	}
	if len(guides.Guides) > 0 {
		c.ImplementationGuide = each(canonicalOf, guides.Guides...)
	}
}

// laterTypes are resource types with HL7's canonicals that R4 does not have.
var laterTypes = []string{"ViewDefinition"}

// backportGuide begins the canonicals of the Subscriptions R5 Backport IG.
const backportGuide = "http://hl7.org/fhir/uv/subscriptions-backport/"

// declareTopics adds to the capabilities of Subscription the profile of the Subscriptions R5 Backport
// IG, and the topics.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/components.html#subscription-topics-in-r4.
func declareTopics(r *r4.CapabilityStatementRestResource, topics []string) {
	const profile = backportGuide + "StructureDefinition/backport-subscription"
	if !slices.ContainsFunc(r.SupportedProfile, func(c fhir.Canonical) bool { return c.Text == profile }) {
		r.SupportedProfile = append(r.SupportedProfile, canonicalOf(profile))
	}
	for _, topic := range topics {
		value := canonicalOf(topic)
		r.Extension = append(r.Extension, fhir.Extension{
			URL: fhir.SystemString{Primitive: text(backportGuide + "StructureDefinition/capabilitystatement-subscriptiontopic-canonical")}, Value: &value,
		})
	}
}

func (s *Service) capabilities(reg *search.Registry, typ string, revIncludes, profiles []string) r4.CapabilityStatementRestResource {
	r := r4.CapabilityStatementRestResource{
		Type_:   codeOf(typ),
		Profile: canonicalOf("http://hl7.org/fhir/StructureDefinition/" + typ),
		Interaction: each(func(code string) r4.CapabilityStatementRestResourceInteraction {
			return r4.CapabilityStatementRestResourceInteraction{Code: codeOf(code)}
		}, "read", "vread", "update", "patch", "delete", "history-instance", "history-type", "create", "search-type"),
		Versioning: codeOf("versioned"), ReadHistory: booleanOf(true), UpdateCreate: booleanOf(!s.now().RefuseUpdateCreate),
		ConditionalCreate: booleanOf(true), ConditionalRead: codeOf("full-support"), ConditionalUpdate: booleanOf(true),
		ConditionalDelete: codeOf("single"),
		ReferencePolicy:   each(codeOf, "literal", "logical"),
		SearchInclude:     each(stringOf, "*"),
		SearchRevInclude:  each(stringOf, append([]string{"*"}, revIncludes...)...),
	}
	if typ == "AuditEvent" { // it can be neither changed nor deleted
		r.Interaction = slices.DeleteFunc(r.Interaction, func(i r4.CapabilityStatementRestResourceInteraction) bool {
			return i.Code.Text == "update" || i.Code.Text == "patch" || i.Code.Text == "delete"
		})
		r.UpdateCreate, r.ConditionalUpdate, r.ConditionalDelete = booleanOf(false), booleanOf(false), codeOf("not-supported")
	}
	for i := range common {
		r.SearchParam = append(r.SearchParam, searchParam(&common[i]))
	}
	for _, p := range reg.Parameters(typ) {
		if !search.Supported(p) || slices.ContainsFunc(common, func(c fhir.Parameter) bool { return c.Code == p.Code }) {
			continue
		}
		r.SearchParam = append(r.SearchParam, searchParam(p))
		if p.Type == fhir.SearchReference {
			r.SearchInclude = append(r.SearchInclude, stringOf(typ+":"+p.Code))
		}
	}
	r.Operation = s.operationsOf(typ)
	compiled := s.Facts.Profiles[typ]
	if len(compiled) > 0 {
		r.Profile = canonicalOf(compiled[0])
		compiled = compiled[1:]
	}
	all := slices.Concat(compiled, slices.DeleteFunc(slices.Clone(profiles), func(p string) bool { return slices.Contains(compiled, p) }))
	r.SupportedProfile = each(canonicalOf, all...)
	return r
}

func searchParam(p *fhir.Parameter) r4.CapabilityStatementRestResourceSearchParam {
	out := r4.CapabilityStatementRestResourceSearchParam{Name: stringOf(p.Code), Type_: codeOf(string(p.Type))}
	out.Definition.Text, out.Documentation.Text = p.URL, p.Description
	return out
}

// bulkOperations are the listings of $export and $import on a type, or with "" on the system.
func (s *Service) bulkOperations(typ string) []OperationListing {
	out := s.exports(typ)
	if typ == "" && s.Facts.Import != nil && s.Facts.Import() {
		out = append(out, OperationListing{Name: "import", Definition: "http://kiln/fhir/OperationDefinition/import"})
	}
	return out
}

// exports is the listing of $export on a type, or with "" on the system; nil where it is not served.
// Spec: https://hl7.org/fhir/uv/bulkdata/STU2/CapabilityStatement-bulk-data.html.
func (s *Service) exports(typ string) []OperationListing {
	name, ok := map[string]string{"": "export", "Patient": "patient-export", "Group": "group-export"}[typ]
	if !ok || s.Facts.Export == nil || !s.Facts.Export() {
		return nil
	}
	return []OperationListing{{Name: "export", Definition: "http://hl7.org/fhir/uv/bulkdata/OperationDefinition/" + name}}
}

// operationsOf lists the operations of a type, or with "" of the system, by name.
func (s *Service) operationsOf(typ string) []r4.CapabilityStatementRestResourceOperation {
	var out []r4.CapabilityStatementRestResourceOperation
	list := append(slices.Clone(s.listedOperations(typ)), s.bulkOperations(typ)...)
	slices.SortStableFunc(list, func(a, b OperationListing) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range list {
		out = append(out, r4.CapabilityStatementRestResourceOperation{Name: stringOf(o.Name), Definition: canonicalOf(o.Definition)})
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
