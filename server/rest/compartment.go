package rest

import (
	"net/http"

	"kiln/server/interaction"
)

// SearchCompartment serves GET /{compartment}/{id}/{type}?….
func (h *Handler) SearchCompartment(w http.ResponseWriter, r *http.Request, typ string) {
	searched := r.PathValue("type")
	c := start(w, "search-compartment")
	if searched != "*" && h.Service.Model.Resources[searched] == nil {
		c.fail(r, h.Service.UnknownType(searched))
		return
	}
	c.search(r, interaction.SearchParams{ResourceType: searched, Compartment: typ, CompartmentID: r.PathValue("id")})
}
