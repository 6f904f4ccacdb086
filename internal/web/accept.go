package web

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// form is how a page is wanted: as text for people if version is empty.
type form struct{ media, version string }

// clause is one part of an Accept header.
type clause struct {
	media  string
	params map[string]string
	weight float64
}

// negotiate picks the form that is liked best of those there are; false: none
// is. Who says nothing gets text.
func negotiate(accept []string, kind string) (form, bool) {
	clauses := parseAccept(strings.Join(accept, ","))
	if len(clauses) == 0 {
		return form{media: typeText}, strings.TrimSpace(strings.Join(accept, "")) == ""
	}
	for _, c := range clauses {
		if f, ok := c.form(kind); ok {
			return f, true
		}
	}
	return form{}, false
}

// parseAccept returns the clauses, the most liked first. What cannot be read is
// left out, and what is not wanted.
func parseAccept(header string) []clause {
	var list []clause
	for part := range strings.SplitSeq(header, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		c := clause{media, params, 1}
		if q, ok := params["q"]; ok {
			if c.weight, err = strconv.ParseFloat(q, 64); err != nil || c.weight <= 0 {
				continue
			}
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b clause) int { return cmp.Compare(b.weight, a.weight) })
	return list
}

// form returns what the clause asks for, if there is such a form of the kind.
func (c clause) form(kind string) (form, bool) {
	group0, version, as := c.params["g"], c.params["v"], c.params["as"]
	plain := group0 == "" && version == "" && as == ""
	switch c.media {
	case "text/plain", "text/*", "*/*":
		return form{media: typeText}, plain
	case typeJSON, typeYAML:
		known := version == "v1beta1" || version == "v1alpha1"
		return form{c.media, version}, group0 == group && known && as == kind
	}
	return form{}, false
}
