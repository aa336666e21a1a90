package interaction

import (
	"bytes"
	"strconv"
	"strings"
	"unsafe"

	"kiln/server/fhir"
	"kiln/server/outcome"
)

// linker puts, into the resources of a transaction, references to what its
// entries become in the place of links to the entries.
// Spec: https://hl7.org/fhir/R4/http.html#trules.
type linker struct {
	// targets: an entry's name in the bundle (fullUrl) -> "Patient/123".
	targets map[string]string
	// versions: "Patient/123" -> the version it will have, where that is known. Few
	// bundles need it.
	versions func() map[string]int
	// conditional: a conditional reference -> "Patient/123".
	conditional map[string]string
	// search reads a conditional reference; ok is false for any other text.
	search func(text string) (typ, criteria string, ok bool)

	base  string // of the present resource: the part of its fullUrl before Type/id
	nodes []fhir.Node
	found []change
	// unresolved is the first reference of the resource at hand that names an entry of the
	// bundle which is not there; "" for none.
	unresolved string
}

type change struct {
	p   *fhir.Primitive
	new string
}

// rewriteReferences changes the links of r and returns what to splice: r's own JSON with
// edits, or new JSON where a link was written with escapes.
func (l *linker) rewriteReferences(r fhir.Resource, fullURL string) (raw []byte, edits []fhir.Edit) {
	raw = r.Header().Raw
	l.base = baseOf(fullURL)
	l.found, l.unresolved = l.found[:0], ""
	l.walkReferences(fhir.NodeOf(r), l.collect)
	if len(l.found) == 0 {
		return raw, nil
	}
	edits = make([]fhir.Edit, 0, len(l.found))
	for _, c := range l.found {
		if old, ok := within(raw, c.p.Text); ok {
			edits = append(edits, fhir.Edit{Old: old, New: c.new})
		}
		c.p.Text = c.new
	}
	if len(edits) < len(l.found) {
		return fhir.Encode(make([]byte, 0, len(raw)+256), r), nil
	}
	return raw, edits
}

// isURN reports whether text is a name that only a bundle can give to a resource: the
// service has no resources known by a URN.
func isURN(text string) bool {
	return strings.HasPrefix(text, "urn:uuid:") || strings.HasPrefix(text, "urn:oid:")
}

// checkResolved refuses what apply found to refer by a URN to no entry: stored, the
// reference would lead nowhere for ever.
// Spec: https://hl7.org/fhir/R4/bundle.html#references (a URN that is not known).
func (l *linker) checkResolved() error {
	if l.unresolved == "" {
		return nil
	}
	return outcome.Invalid("the reference %s is the fullUrl of no entry of this transaction", outcome.Clip(l.unresolved))
}

// applyText puts references in the place of the strings of a JSON document that are a URN
// of an entry: a JSON Patch in a Binary.
func (l *linker) applyText(doc []byte) []byte {
	const open = `"urn:`
	var out []byte
	done := 0
	for at := 0; ; {
		i := bytes.Index(doc[at:], []byte(open))
		if i < 0 {
			break
		}
		from := at + i + 1
		n := bytes.IndexByte(doc[from:], '"')
		if n < 0 {
			break
		}
		at = from + n
		if to, ok := l.targets[string(doc[from:at])]; ok {
			out = append(append(out, doc[done:from]...), to...)
			done = at
		}
		at++
	}
	if done == 0 {
		return doc
	}
	return append(out, doc[done:]...)
}

// within returns the bytes of raw that text is.
func within(raw []byte, text string) ([]byte, bool) {
	from := uintptr(unsafe.Pointer(unsafe.StringData(text))) - uintptr(unsafe.Pointer(unsafe.SliceData(raw)))
	if from >= uintptr(len(raw)) || from+uintptr(len(text)) > uintptr(len(raw)) {
		return nil, false
	}
	return raw[from : from+uintptr(len(text))], true
}

// walkReferences visits every primitive below n that can hold a link. A canonical is no link. The
// values of oid and uuid stay as they are: a relative reference is no value of these
// types. A Bundle stays as it is: its links are about its own entries.
// Spec: https://hl7.org/fhir/R4/http.html#trules, bundle.html#references.
func (l *linker) walkReferences(n fhir.Node, visit func(n fhir.Node, reference bool)) {
	if n.T.Name == "Bundle" {
		return
	}
	start := len(l.nodes)
	isReference := n.T.Name == "Reference"
	for i := range n.T.Fields {
		f := &n.T.Fields[i]
		l.nodes = n.AppendField(l.nodes[:start], f)
		end := len(l.nodes)
		for j := start; j < end; j++ {
			child := l.nodes[j]
			if !child.T.Kind.Primitive() {
				l.deeper(end, child, visit)
				continue
			}
			switch child.T.Kind {
			case fhir.URIKind, fhir.URLKind, fhir.XHTMLKind:
				visit(child, false)
			case fhir.StringKind:
				if isReference && f.Name == "reference" {
					visit(child, true)
				}
			}
			if x := child.Extra(); x != nil {
				for k := range x.Extension {
					l.deeper(end, fhir.NodeOf(&x.Extension[k]), visit)
				}
			}
		}
	}
	l.nodes = l.nodes[:start]
}

// deeper walks child without touching the first n nodes of the stack.
func (l *linker) deeper(n int, child fhir.Node, visit func(n fhir.Node, reference bool)) {
	l.nodes = l.nodes[:n]
	l.walkReferences(child, visit)
}

func (l *linker) collect(n fhir.Node, reference bool) {
	text := n.Text()
	var replaced string
	switch {
	case text == "":
		return
	case reference:
		if replaced = l.reference(text); replaced == "" && l.unresolved == "" && isURN(text) {
			l.unresolved = text
		}
	case n.T.Kind == fhir.XHTMLKind:
		replaced = l.narrative(text)
	case strings.HasPrefix(text, "urn:"):
		// A code system may be an entry's http fullUrl by right; only a urn is
		// certainly a name made for this bundle.
		replaced = l.targets[text]
	}
	if replaced != "" && replaced != text {
		l.found = append(l.found, change{n.Primitive(), replaced})
	}
}

// reference returns what replaces Reference.reference, "" for nothing. One of a
// version stays one of a version, as far as it is known of the one that will be
// stored. Spec: https://hl7.org/fhir/R4/http.html#trules.
func (l *linker) reference(text string) string {
	if to := l.target(text); to != "" {
		return to
	}
	if l.isConditional(text) {
		return l.conditional[text]
	}
	head, version, ok := strings.Cut(text, "/_history/")
	if !ok {
		return ""
	}
	to := l.target(head)
	if to == "" {
		return ""
	}
	if n, ok := l.versions()[to]; ok {
		version = strconv.Itoa(n)
	}
	return to + "/_history/" + version
}

// target returns the new reference of the entry that text names, "" if it names none. A
// relative reference is resolved against the fullUrl of its entry.
// Spec: https://hl7.org/fhir/R4/bundle.html#references.
func (l *linker) target(text string) string {
	if to, ok := l.targets[text]; ok {
		return to
	}
	if l.base != "" && !strings.Contains(text, ":") {
		return l.targets[l.base+text]
	}
	return ""
}

// isConditional reports whether text is a search that stands in the place of a
// reference: "Patient?identifier=…", also below the service's own base URL.
func (l *linker) isConditional(text string) bool {
	if strings.IndexByte(text, '?') < 0 {
		return false
	}
	_, _, ok := l.search(text)
	return ok
}

// narrative replaces the targets of href and src attributes.
func (l *linker) narrative(div string) string {
	var out strings.Builder
	done := 0
	for at := 0; ; {
		i := strings.IndexByte(div[at:], '=')
		if i < 0 {
			break
		}
		name := at + i
		at = name + 1
		if !strings.HasSuffix(div[:name], "href") && !strings.HasSuffix(div[:name], "src") || at >= len(div) {
			continue
		}
		quote := div[at]
		if quote != '"' && quote != '\'' {
			continue
		}
		end := strings.IndexByte(div[at+1:], quote)
		if end < 0 {
			break
		}
		value := div[at+1 : at+1+end]
		if to, ok := l.targets[value]; ok {
			out.WriteString(div[done : at+1])
			out.WriteString(to)
			done = at + 1 + end
		}
		at += end + 2
	}
	if done == 0 {
		return ""
	}
	out.WriteString(div[done:])
	return out.String()
}

// baseOf is the part of an absolute URL before Type/id, with its slash; "" for a urn.
func baseOf(fullURL string) string {
	if !strings.HasPrefix(fullURL, "http://") && !strings.HasPrefix(fullURL, "https://") {
		return ""
	}
	if i := strings.LastIndexByte(fullURL, '/'); i > 0 {
		if j := strings.LastIndexByte(fullURL[:i], '/'); j > len("https:/") {
			return fullURL[:j+1]
		}
	}
	return ""
}

// conditionalReferences appends the conditional references in r to dst. Nearly no
// resource has a question mark, as it is or as an escape.
func (l *linker) conditionalReferences(dst []string, r fhir.Resource) []string {
	if raw := r.Header().Raw; len(raw) > 0 && bytes.IndexByte(raw, '?') < 0 && !bytes.Contains(raw, []byte(`\u00`)) {
		return dst
	}
	l.walkReferences(fhir.NodeOf(r), func(n fhir.Node, reference bool) {
		if reference && l.isConditional(n.Text()) {
			dst = append(dst, n.Text())
		}
	})
	return dst
}
