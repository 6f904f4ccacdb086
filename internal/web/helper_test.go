package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/listentest"
)

// ask sends a request to a handler: "GET /path", with a body on the next line, and headers as "Name: value".
func ask(t *testing.T, h http.Handler, request string, headers ...string) *http.Response {
	t.Helper()
	line, body, _ := strings.Cut(request, "\n")
	method, path, _ := strings.Cut(line, " ")
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// bodyOf reads the body of an answer.
func bodyOf(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("read body: %v", err)
	}
	return string(b)
}

// answerOf returns the answer of the server at an address, or "refused".
func answerOf(t *testing.T, n *listentest.Host, at string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, at string) (net.Conn, error) { return n.Dial(ctx, at) },
	}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		t.Fatalf("GET %s: %v", at, err)
	}
	defer func() { _ = answer.Body.Close() }()
	return bodyOf(t, answer)
}
