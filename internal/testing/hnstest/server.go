package hnstest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// Serve answers calls of computenetwork.dll and vmcompute.dll with the Fake until the listener is closed. Each
// connection is one call, which ends when the client closes its side: a line with the name of the call and an ID ("-":
// none), and then a document. The answer is a line with an HRESULT in hexadecimal and an ID, and then a document.
func (f *Fake) Serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go f.serve(c)
	}
}

func (f *Fake) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) != 2 {
		return
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return
	}
	id, answer, err := f.call(words[0], strings.ToLower(words[1]), text)
	result := resultOf(err)
	if err != nil {
		answer = map[string]any{"Success": false, "Error": err.Error(), "ErrorCode": result}
	}
	doc := []byte{}
	if answer != nil {
		doc = settings(answer)
	}
	_, _ = fmt.Fprintf(c, "%08x %s\n%s", result, id, doc) // an error means that the client has ended
}

// errInvalid is the error of a document or call that is not understood.
var errInvalid = errors.New("the document is invalid")

// resultOf returns an HRESULT (winerror.h).
func resultOf(err error) uint32 {
	const ok, invalidArgument, fail = 0, 0x80070057, 0x80004005
	_, isMessage := errors.AsType[*json.SyntaxError](err)
	switch {
	case err == nil:
		return ok
	case errors.Is(err, hns.ErrNoNetwork):
		return 0x803b0001
	case errors.Is(err, hns.ErrNotFound):
		return 0x80070490 // ERROR_NOT_FOUND
	case errors.Is(err, hns.ErrPortExists):
		return 0x803b0013
	case errors.Is(err, hns.ErrInvalidIP):
		return 0x803b001e
	case errors.Is(err, hns.ErrNotImplemented):
		return 0x80004001
	case errors.Is(err, hns.ErrDenied):
		return 0x80070005
	case errors.Is(err, errInvalid), isMessage:
		return invalidArgument
	}
	return fail
}

// call carries out a call, and keeps it if it is to change HNS. It returns the ID of a new object, and a document.
func (f *Fake) call(name, id string, text []byte) (newID string, answer any, err error) {
	newID, answer, err = f.carryOut(name, id, text)
	for _, verb := range []string{"HcnCreate", "HcnModify", "HcnDelete"} {
		if strings.HasPrefix(name, verb) {
			f.keep(Request{name, id, newID, string(text)})
		}
	}
	return newID, answer, err
}

func (f *Fake) carryOut(name, id string, text []byte) (newID string, answer any, err error) {
	ctx := context.Background()
	switch name {
	case "HNSCall":
		has, err := f.Features(ctx)
		return "-", map[string]any{"Success": true, "Output": versionOf(has)}, err
	case "HcnEnumerateNetworks", "HcnEnumerateEndpoints", "HcnEnumerateLoadBalancers":
		ids, err := f.enumerate(name, text)
		return "-", ids, err
	case "HcnOpenNetwork", "HcnQueryNetworkProperties":
		answer, err = f.networkWith(id)
	case "HcnOpenEndpoint", "HcnQueryEndpointProperties":
		answer, err = f.endpointWith(id)
	case "HcnOpenLoadBalancer", "HcnQueryLoadBalancerProperties":
		answer, err = f.balancerWith(id)
	case "HcnCreateEndpoint":
		newID, err = f.createEndpoint(ctx, id, text)
		return newID, nil, err
	case "HcnCreateLoadBalancer", "HcnModifyLoadBalancer":
		newID, err = f.writeBalancer(ctx, id, text)
		return newID, nil, err
	case "HcnDeleteEndpoint":
		return "-", nil, f.DeleteEndpoint(ctx, id)
	case "HcnDeleteLoadBalancer":
		return "-", nil, f.DeleteLoadBalancer(ctx, id)
	default:
		err = fmt.Errorf("%w: call %s", hns.ErrNotImplemented, name)
	}
	if strings.HasPrefix(name, "HcnOpen") {
		answer = nil
	}
	return id, answer, err
}

func (f *Fake) createEndpoint(ctx context.Context, network string, text []byte) (string, error) {
	var doc endpointRequest
	if err := decode(text, &doc); err != nil {
		return "-", err
	}
	if err := errors.Join(doc.SchemaVersion.check(), checkMAC(doc.MacAddress)); err != nil {
		return "-", err
	}
	e, err := doc.endpoint()
	if err != nil {
		return "-", fmt.Errorf("%w: %w", hns.ErrInvalidIP, err)
	}
	e.Network = network
	id, err := f.CreateEndpoint(ctx, e)
	return orNone(id), err
}

// writeBalancer creates a load balancer, or changes the one with an ID.
func (f *Fake) writeBalancer(ctx context.Context, id string, text []byte) (string, error) {
	var doc balancerDocument
	if err := decode(text, &doc); err != nil {
		return "-", err
	}
	if err := doc.SchemaVersion.check(); err != nil {
		return "-", err
	}
	l, err := doc.balancer()
	if err != nil {
		return "-", fmt.Errorf("%w: %w", errInvalid, err)
	}
	if id != "-" {
		l.ID = id
		return id, f.ModifyLoadBalancer(ctx, l)
	}
	id, err = f.CreateLoadBalancer(ctx, l)
	return orNone(id), err
}

func orNone(id string) string {
	if id == "" {
		return "-"
	}
	return id
}

// enumerate returns the IDs of the objects that a query names.
func (f *Fake) enumerate(call string, text []byte) ([]string, error) {
	var query struct{ Filter string }
	if err := json.Unmarshal(text, &query); err != nil {
		return nil, err
	}
	filter := struct{ ID, Name, VirtualNetwork string }{}
	if query.Filter != "" {
		if err := json.Unmarshal([]byte(query.Filter), &filter); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := []string{}
	add := func(id, name, network string) {
		if (filter.ID == "" || strings.EqualFold(filter.ID, id)) && (filter.Name == "" || filter.Name == name) &&
			(filter.VirtualNetwork == "" || strings.EqualFold(filter.VirtualNetwork, network)) {
			ids = append(ids, id)
		}
	}
	switch call {
	case "HcnEnumerateNetworks":
		if f.Broken != nil {
			return nil, f.Broken
		}
		for _, n := range f.networks {
			add(n.ID, n.Name, "")
		}
	case "HcnEnumerateEndpoints":
		for id, e := range f.endpoints {
			add(id, e.Name, e.Network)
		}
	default:
		for id := range f.balancers {
			add(id, "", "")
		}
	}
	return ids, nil
}

func (f *Fake) networkWith(id string) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.networks {
		if n.ID == id {
			return networkOf(n), nil
		}
	}
	return nil, fmt.Errorf("network %s: %w", id, hns.ErrNoNetwork)
}

func (f *Fake) endpointWith(id string) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, has := f.endpoints[id]
	if !has {
		return nil, fmt.Errorf("endpoint %s: %w", id, hns.ErrNotFound)
	}
	return endpointOf(returnedEndpoint(e)), nil
}

func (f *Fake) balancerWith(id string) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, has := f.balancers[id]
	if !has {
		return nil, fmt.Errorf("load balancer %s: %w", id, hns.ErrNotFound)
	}
	return balancerOf(f.returned(l)), nil
}

// versionOf returns a version of HNS that can do something (hcnglobals.go of hnslib has the ranges).
func versionOf(f hns.Features) version {
	switch {
	case f.Modify:
		return version{16, 0}
	case f.SessionAffinity:
		return version{15, 1}
	case f.DualStack:
		return version{11, 11}
	case f.DSR:
		return version{9, 3}
	case f.V2:
		return version{9, 2}
	}
	return version{7, 2}
}
