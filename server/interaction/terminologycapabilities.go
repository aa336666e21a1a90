package interaction

// The parts of a TerminologyCapabilities that the service fills in.
type (
	terminologyCapabilities struct {
		ResourceType   string         `json:"resourceType"`
		Status         string         `json:"status"`
		Date           string         `json:"date"`
		Description    string         `json:"description"`
		Kind           string         `json:"kind"`
		Software       software       `json:"software"`
		Implementation implementation `json:"implementation"`
		Expansion      *expansion     `json:"expansion,omitempty"`
		ValidateCode   *validateCode  `json:"validateCode,omitempty"`
		Translation    *translation   `json:"translation,omitempty"`
	}
	software struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	implementation struct {
		Description string `json:"description"`
		URL         string `json:"url"`
	}
	expansion struct {
		Hierarchical bool                 `json:"hierarchical"`
		Paging       bool                 `json:"paging"`
		Incomplete   bool                 `json:"incomplete"`
		Parameter    []expansionParameter `json:"parameter"`
		TextFilter   string               `json:"textFilter"`
	}
	expansionParameter struct {
		Name string `json:"name"`
	}
	validateCode struct {
		Translations bool `json:"translations"`
	}
	translation struct {
		NeedsMap bool `json:"needsMap"`
	}
)

// terminologyCapabilities describes the terminology service: the operations, and how they
// answer.
// Spec: https://hl7.org/fhir/R4/terminologycapabilities.html.
func (s *Service) terminologyCapabilities(base string) terminologyCapabilities {
	c := terminologyCapabilities{
		ResourceType: "TerminologyCapabilities", Status: "active", Date: s.Facts.Date, Kind: "instance",
		Description: "Answers from the code systems, value sets and concept maps of FHIR R4, of the packages installed and of those stored here; " +
			"an external terminology server, if one is configured, answers for the others.",
		Software: software{"Kiln", s.Facts.Version}, Implementation: implementation{description, base},
	}
	if s.ServesOperation("ValueSet", "expand") {
		c.Expansion = &expansion{Hierarchical: true, Paging: true, TextFilter: "Every word of the filter must stand in the code, the display or a designation, without regard to case and accents."}
		for _, name := range []string{"activeOnly", "count", "excludeNested", "filter", "includeDesignations", "offset", "url"} {
			c.Expansion.Parameter = append(c.Expansion.Parameter, expansionParameter{name})
		}
	}
	if s.ServesOperation("ValueSet", "validate-code") {
		c.ValidateCode = new(validateCode)
	}
	if s.ServesOperation("ConceptMap", "translate") {
		c.Translation = &translation{NeedsMap: true}
	}
	return c
}
