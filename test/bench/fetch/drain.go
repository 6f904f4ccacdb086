//go:build linux

package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Method is a way to fetch both kinds.
type Method struct {
	Name string
	all  func(context.Context, *Drain, kind) (int, error)
}

// Methods returns all ways.
func Methods() []Method {
	return []Method{
		{"List at resourceVersion=0", func(ctx context.Context, d *Drain, k kind) (int, error) {
			return d.pages(ctx, k.path, fromCache(k.choose))
		}},
		{"pages of 5,000", paged(5000)},
		{"pages of 500", paged(500)},
		{"streaming list", func(ctx context.Context, d *Drain, k kind) (int, error) {
			return d.stream(ctx, k.path, streamed(k.choose))
		}},
	}
}

// paged returns a method of consistent reads (resourceVersion="").
func paged(limit int64) func(context.Context, *Drain, kind) (int, error) {
	return func(ctx context.Context, d *Drain, k kind) (int, error) {
		o := k.choose
		o.Limit = limit
		return d.pages(ctx, k.path, o)
	}
}

// Drain is a client that reads all bytes of an answer and decodes none of its objects.
type Drain struct {
	http *http.Client
	host string

	bytes   atomic.Int64
	refused atomic.Int64
}

// NewDrain returns a client with a connection of its own.
func NewDrain(config *rest.Config) (*Drain, error) {
	client, err := connect(config)
	return &Drain{http: client, host: strings.TrimSuffix(config.Host, "/")}, err
}

// Close closes the connection.
func (d *Drain) Close() { d.http.CloseIdleConnections() }

// Bytes returns how many bytes have been received.
func (d *Drain) Bytes() int64 { return d.bytes.Load() }

// Refused returns how many requests the API server has refused as too many.
func (d *Drain) Refused() int64 { return d.refused.Load() }

// All fetches both kinds at once.
func (d *Drain) All(ctx context.Context, m Method) (Counts, error) {
	var counts Counts
	group, ctx := errgroup.WithContext(ctx)
	for i, k := range kinds() {
		group.Go(func() (err error) {
			if counts[i], err = m.all(ctx, d, k); err != nil {
				err = fmt.Errorf("%s of %s, after %d objects: %w", m.Name, k.path, counts[i], err)
			}
			return err
		})
	}
	return counts, group.Wait()
}

// pages requests a list, and further pages while there are any.
func (d *Drain) pages(ctx context.Context, path string, o metav1.ListOptions) (int, error) {
	count := 0
	for {
		body, err := d.get(ctx, path, o, contentType)
		if err != nil {
			return count, err
		}
		n, next, err := drainList(body)
		_ = body.Close()
		count += n
		if err != nil || next == "" {
			return count, err
		}
		o.Continue = next
	}
}

// stream requests a streaming list.
func (d *Drain) stream(ctx context.Context, path string, o metav1.ListOptions) (int, error) {
	o.Watch = true
	body, err := d.get(ctx, path, o, contentType+";stream=watch")
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	return drainStream(body)
}

// get sends a request, again whenever the API server refuses it as one too many.
func (d *Drain) get(ctx context.Context, path string, o metav1.ListOptions, accept string) (io.ReadCloser, error) {
	query, err := scheme.ParameterCodec.EncodeParameters(&o, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.host+path+"?"+query.Encode(), nil)
		if err != nil {
			return nil, err
		}
		request.Header.Set("Accept", accept)
		response, err := d.http.Do(request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode == http.StatusOK {
			return counted{response.Body, &d.bytes}, nil
		}
		if err := d.refusal(ctx, response); err != nil {
			return nil, err
		}
	}
}

// refusal waits as long as the API server demands; any other answer is an error.
func (d *Drain) refusal(ctx context.Context, response *http.Response) error {
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusTooManyRequests {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1000)) // the status says enough
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	d.refused.Add(1)
	after, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		return errors.New("refused without a Retry-After")
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(after) * time.Second):
		return nil
	}
}

// counted counts the bytes that are read.
type counted struct {
	io.ReadCloser

	bytes *atomic.Int64
}

// Read implements io.Reader.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}
