//go:build linux

package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// Client returns an HTTP client that opens a new connection from a host for each request.
func Client(from *lab.Host, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DisableKeepAlives:  true,
		DisableCompression: true, // it costs the server memory
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			err = from.Do(func() error {
				conn, err = net.DialTimeout(network, address, time.Second)
				return err
			})
			return conn, err
		},
	}}
}

// Get requests a URL from a host.
func Get(from *lab.Host, timeout time.Duration, url string) (code int, body []byte, err error) {
	response, err := Client(from, timeout).Get(url)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// Get requests a URL from the host of the process. Any status except 200 is an error.
func (p *Process) Get(url string) ([]byte, error) {
	code, body, err := Get(p.host, 30*time.Second, url)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("get %s: status %d: %s", url, code, body)
	}
	return body, err
}
