// Package page is the page for people at the address of the metrics: status, Services, the way of a connection, and the
// latest Events, as HTML without scripts. It changes nothing, and computes nothing that commands do not print.
//
// It uses the renderer of x/net/html, since html/template finds methods by name: the linker would have to keep every
// exported method, which are 7 MB.
package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/net/html"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

//go:embed style.css
var style string

// answerTime bounds an answer, the wait for others included.
const answerTime = 3 * time.Second

// The pause after an answer is pace times its duration, but at most longestPause: however often clients ask, answers
// take a fifth of a CPU at most, as long as one takes less than 250 ms. With 100,000 Services one takes 200 ms.
const (
	pace         = 4
	longestPause = time.Second
)

var errBusy = errors.New("this page answers one request at a time, and others wait; try again")

// handler answers one request at a time.
type handler struct {
	inspect *inspect.Inspector
	policy  string        // the Content-Security-Policy
	slot    chan struct{} // held by the request that is answered, and during the pause after it
}

// New returns a handler for GET and HEAD.
func New(i *inspect.Inspector) http.Handler {
	sum := sha256.Sum256([]byte(style))
	return &handler{inspect: i, slot: make(chan struct{}, 1), policy: "default-src 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": h.policy, "Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	} {
		w.Header().Set(name, value)
	}
	if r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTime)
	defer cancel()
	body, err := h.answer(ctx, r)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write(body) // fails if the client closed the connection
}

// answer returns the page. It is in memory, so that a slow client does not delay others.
func (h *handler) answer(ctx context.Context, r *http.Request) ([]byte, error) {
	select {
	case h.slot <- struct{}{}:
	case <-ctx.Done():
		return nil, errBusy
	}
	began := time.Now()
	defer func() {
		time.AfterFunc(min(pace*time.Since(began), longestPause), func() { <-h.slot })
	}()
	doc := &document{inspect: h.inspect, asked: questionOf(r.URL.Query())}
	write := doc.write
	if !confidential(r) {
		write = doc.writePublic
	}
	if err := h.inspect.Alone(ctx, func() { write(ctx) }); err != nil {
		return nil, err
	}
	var body bytes.Buffer
	body.WriteString("<!DOCTYPE html>\n")
	err := html.Render(&body, doc.root.Node)
	return body.Bytes(), err
}

// confidential reports whether a request may get names and addresses of Services: it comes from this host by a loopback
// address, which a port-forward or a tunnel does too, and not by a name of another, to which a website may have given
// that address (DNS rebinding).
func confidential(r *http.Request) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if at == nil {
		return false
	}
	local, err := netip.ParseAddrPort(at.String())
	if err != nil || !local.Addr().Unmap().IsLoopback() {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "localhost"
}
