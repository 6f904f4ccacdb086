package hnstest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
)

// endpointRequest is the document of an endpoint as hnslib sends it: with fields that are always empty.
type endpointRequest struct {
	endpointDocument
	DNS    json.RawMessage `json:"Dns"`
	Health json.RawMessage
}

// Request is a call that Serve has received, and that changes HNS if it succeeds.
type Request struct {
	Call     string // such as HcnCreateEndpoint
	ID       string // of the network of a new endpoint, or of the object that is changed or deleted; "-": none
	Made     string // the ID of a new object; "-": none
	Document string // as it came; empty: a deletion
}

// Requests returns all requests, in the order in which they were answered.
func (f *Fake) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// Documents returns the documents of all creations and changes, one line each with the name of the call.
func (f *Fake) Documents() (lines []string) {
	for _, r := range f.Requests() {
		if r.Document != "" {
			lines = append(lines, r.Call+" "+r.Document)
		}
	}
	return lines
}

func (f *Fake) keep(r Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r)
}

// decode decodes a document. It refuses fields that this package does not know: HNS would ignore them.
func decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	return nil
}

// check verifies the version of a schema.
func (v version) check() error {
	if v.Major != 2 {
		return fmt.Errorf("%w: schema version %d.%d", errInvalid, v.Major, v.Minor)
	}
	return nil
}

// checkMAC verifies a MAC address in a document; none is valid.
func checkMAC(mac string) error {
	if mac != "" && !regexp.MustCompile(`^([0-9A-Fa-f]{2}[-:]){5}[0-9A-Fa-f]{2}$`).MatchString(mac) {
		return fmt.Errorf("%w: MAC address %q", errInvalid, mac)
	}
	return nil
}
