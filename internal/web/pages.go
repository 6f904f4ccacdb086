// Package web has the HTTP pages of Sluice, which are compatible with kube-proxy's:
// health, metrics and diagnostics; and a Server that serves them at an address.
package web

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/sluice-proxy/sluice/internal/health"
)

// Health serves the pages healthz and livez, for every method, and passes the status of each answer to count.
func Health(verdict func() health.Verdict, count func(page string, code int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
			v := verdict()
			r := report(v, v.Programmed(), &v.Eligible)
			r.Reason = v.Summary().Reason
			count("healthz", r.write(w))
		case "/livez":
			v := verdict()
			count("livez", report(v, v.Live, nil).write(w))
		default:
			http.NotFound(w, r)
		}
	})
}

// healthReport is the body; load balancers of some clouds read it.
type healthReport struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Reason       string                  `json:"reason,omitempty"` // not in kube-proxy's
	Status       map[string]familyReport `json:"status,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report makes the body; eligible is nil if the page leaves the Node out.
func report(v health.Verdict, healthy bool, eligible *bool) healthReport {
	r := healthReport{LastUpdated: v.LastUpdated, CurrentTime: v.Now, NodeEligible: eligible, Healthy: healthy}
	for _, f := range v.Families {
		if r.Status == nil {
			r.Status = map[string]familyReport{}
		}
		r.Status[f.String()] = familyReport{v.LastUpdated, healthy}
	}
	if r.code() == http.StatusOK {
		r.LastUpdated = v.Now // no change waits, so the rules are as of now
	}
	return r
}

func (r healthReport) code() int {
	if !r.Healthy || r.NodeEligible != nil && !*r.NodeEligible {
		return http.StatusServiceUnavailable
	}
	return http.StatusOK
}

func (r healthReport) write(w http.ResponseWriter) int {
	body, err := json.Marshal(r)
	if err != nil { // a year of five digits
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	writeBody(w, typeJSON, r.code(), body)
	return r.code()
}

// The media types of answers.
const (
	typeText = "text/plain; charset=utf-8"
	typeJSON = "application/json"
	typeYAML = "application/yaml"
)

func writeBody(w http.ResponseWriter, mediaType string, code int, body []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails if the client closed the connection
}
