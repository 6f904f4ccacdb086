//go:build linux

package wine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// value verifies a value of a JSON document, which was decoded with numbers as json.Number.
type value func(v any) error

// object is a struct of the schema: its fields, spelled as there, and those that HNS needs.
type object struct {
	fields   map[string]value
	required []string
}

// checkDocument verifies the document of a call against Microsoft's page "HNS Schema"
// (virtualization/api/hcn/HNS_Schema.md of MicrosoftDocs/Virtualization-Documentation), to which the pages of these
// calls refer. Fields are compared letter by letter. The page says that SchemaVersion is in every object, and
// requires no other field; here those are required without which a document would say nothing.
func checkDocument(call, document string) error {
	d := json.NewDecoder(strings.NewReader(document))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	switch call {
	case "HcnCreateEndpoint":
		return hostComputeEndpoint().check(v)
	case "HcnCreateLoadBalancer", "HcnModifyLoadBalancer":
		return hostComputeLoadBalancer().check(v)
	}
	return fmt.Errorf("%s has no document", call)
}

func (o object) check(v any) error {
	doc, is := v.(map[string]any)
	if !is {
		return fmt.Errorf("%v is no object", v)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		check, has := o.fields[name]
		if !has {
			errs = append(errs, fmt.Errorf("%s is no field", name))
			continue
		}
		if err := check(doc[name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, name := range o.required {
		if _, has := doc[name]; !has {
			errs = append(errs, fmt.Errorf("%s is missing", name))
		}
	}
	return errors.Join(errs...)
}

// derived returns an object with the fields of Base, too.
func derived(fields map[string]value, required ...string) object {
	health := object{fields: map[string]value{"Data": anything, "Extra": object{fields: map[string]value{
		"Resources": anything, "SharedContainers": anything, "LayeredOn": guid, "SwitchGuid": guid,
		"UtilityVM": guid, "VirtualMachine": guid,
	}}.check}}
	version := object{map[string]value{"Major": number(2, 2), "Minor": number(0, 14)}, []string{"Major", "Minor"}}
	base := map[string]value{
		"ID": guid, "Owner": text, "Name": text, "Version": number(0, 1<<63),
		"AdditionalParams": anything, "Health": health.check,
		"SchemaVersion": version.check, "Telemetry": anything, "State": number(0, 1<<16-1),
	}
	maps.Copy(base, fields)
	return object{base, append(required, "SchemaVersion")}
}

func hostComputeEndpoint() object {
	ipConfig := object{
		map[string]value{"IpAddress": address, "PrefixLength": number(0, 128), "IpSubnetId": guid}, []string{"IpAddress"},
	}
	dns := object{
		fields: map[string]value{
			"Domain": text, "Search": list(0, text), "ServerList": list(0, text), "Options": list(0, text),
		},
	}
	route := object{fields: map[string]value{"NextHop": address, "DestinationPrefix": text, "Metric": number(0, 1<<16-1)}}
	return derived(map[string]value{
		"HostComputeNetwork": guid, "HostComputeNamespace": guid, "Policies": list(0, endpointPolicy),
		"IpConfigurations": list(1, ipConfig.check),
		"Dns":              dns.check, "Routes": list(0, route.check), "MacAddress": mac,
		"Flags": bits(map[uint64]string{1: "RemoteEndpoint"}),
	}, "HostComputeNetwork", "IpConfigurations", "MacAddress")
}

// endpointPolicy verifies an EndpointPolicy. The settings of only one type are described here.
func endpointPolicy(v any) error {
	provider := object{map[string]value{"ProviderAddress": address}, []string{"ProviderAddress"}}
	return object{
		map[string]value{"Type": named("ProviderAddress"), "Settings": provider.check},
		[]string{"Type", "Settings"},
	}.check(v)
}

// hostComputeLoadBalancer has the numbers of enumerations as kube-proxy and the tests of Microsoft's library send
// them. The page has their names only, and calls 4 NotUsed; 16 is not on the page.
func hostComputeLoadBalancer() object {
	port := object{map[string]value{
		"Protocol": oneOf(map[uint64]string{6: "TCP", 17: "UDP"}), "InternalPort": number(1, 1<<16-1),
		"ExternalPort":     number(1, 1<<16-1),
		"DistributionType": oneOf(map[uint64]string{0: "None", 1: "SourceIPProtocol", 2: "SourceIP"}),
		"Flags": bits(map[uint64]string{
			1: "EnableInternalLoadBalancer", 2: "LocalRoutedVip", 4: "NotUsed", 8: "EnablePreserveDip", 16: "",
		}),
	}, []string{"Protocol", "InternalPort", "ExternalPort"}}
	return derived(map[string]value{
		"HostComputeNetwork": text, "HostComputeEndpoints": list(1, guid), "SourceVIP": address,
		"FrontendVIPs": list(1, address),
		"PortMappings": list(1, port.check), "Flags": bits(map[uint64]string{1: "EnableDirectServerReturn", 2: "IPv6"}),
	}, "HostComputeEndpoints", "PortMappings")
}

func anything(any) error { return nil }

func text(v any) error {
	if _, is := v.(string); !is {
		return fmt.Errorf("%v is no string", v)
	}
	return nil
}

// matching returns a value that is a string with a form.
func matching(what, form string) value {
	return func(v any) error {
		if s, is := v.(string); !is || !regexp.MustCompile(form).MatchString(s) {
			return fmt.Errorf("%v is no %s", v, what)
		}
		return nil
	}
}

// guid has the form that the page names.
func guid(v any) error {
	return matching("GUID", `^[0-9A-Fa-f]{8}-([0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$`)(v)
}

// mac accepts the two forms that kube-proxy sends: its own with hyphens, and the address of an interface of the node,
// as Go prints it.
func mac(v any) error {
	return matching("MAC address", `^([0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}$|^([0-9a-f]{2}:){5}[0-9a-f]{2}$`)(v)
}

func address(v any) error {
	s, _ := v.(string)
	if _, err := netip.ParseAddr(s); err != nil {
		return fmt.Errorf("%v is no address", v)
	}
	return nil
}

func number(least, most uint64) value {
	return func(v any) error {
		n, is := v.(json.Number)
		got, err := strconv.ParseUint(n.String(), 10, 64)
		if !is || err != nil || got < least || got > most {
			return fmt.Errorf("%v is no number from %d to %d", v, least, most)
		}
		return nil
	}
}

// list returns a value with so many items, or more.
func list(least int, item value) value {
	return func(v any) error {
		items, is := v.([]any)
		if !is || len(items) < least {
			return fmt.Errorf("%v is no list of %d or more", v, least)
		}
		var errs []error
		for _, i := range items {
			errs = append(errs, item(i))
		}
		return errors.Join(errs...)
	}
}

// named returns a value of an enumeration that is a name.
func named(name string) value {
	return func(v any) error {
		if v != name {
			return fmt.Errorf("%v is not %s", v, name)
		}
		return nil
	}
}

// oneOf returns a value of an enumeration, as a number.
func oneOf(names map[uint64]string) value {
	return func(v any) error {
		n, _ := v.(json.Number)
		got, err := strconv.ParseUint(n.String(), 10, 64)
		if _, has := names[got]; err != nil || !has {
			return fmt.Errorf("%v is none of %v", v, names)
		}
		return nil
	}
}

// bits returns a value of an enumeration whose values can be combined, as a number.
func bits(names map[uint64]string) value {
	return func(v any) error {
		n, _ := v.(json.Number)
		got, err := strconv.ParseUint(n.String(), 10, 64)
		for bit := range names {
			got &^= bit
		}
		if err != nil || got != 0 {
			return fmt.Errorf("%v has other bits than %v", v, names)
		}
		return nil
	}
}

const (
	goodEndpoint = `{"HostComputeNetwork":"c0ffee00-abcd-4ef0-8abc-000000000001","Policies":[{"Type":"ProviderAddress",` +
		`"Settings":{"ProviderAddress":"192.168.0.3"}}],` +
		`"IpConfigurations":[{"IpAddress":"10.180.1.7"}],"Dns":{},"MacAddress":"02-11-0A-B4-01-07","Flags":1,` +
		`"Health":{"Extra":{}},"SchemaVersion":{"Major":2,"Minor":0}}`
	goodBalancer = `{"HostComputeEndpoints":["c0ffee00-abcd-4ef0-8abc-000000000002"],"SourceVIP":"10.0.0.1",` +
		`"FrontendVIPs":["1.1.1.2","1.1.1.3"],` +
		`"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":80,"DistributionType":2,"Flags":8}],` +
		`"SchemaVersion":{"Major":2,"Minor":0},"Flags":1}`
)

// The schema accepts the documents of the tests of Microsoft's library (HcnCreateTestLoadBalancer and
// TestAddDSRLoadBalancer), and refuses each of these edits of them.
func TestSchema(t *testing.T) {
	for call, doc := range map[string]string{
		"HcnCreateEndpoint": goodEndpoint, "HcnCreateLoadBalancer": goodBalancer, "HcnModifyLoadBalancer": goodBalancer,
	} {
		if err := checkDocument(call, doc); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
	refuses(t, "HcnCreateEndpoint", goodEndpoint, [][3]string{
		{`"MacAddress"`, `"MacAddres"`, "MacAddres is no field"},
		{"02-11-0A-B4-01-07", "02110AB40107", "is no MAC address"},
		{`"Flags":1`, `"Flags":2`, "has other bits"},
		{`"Flags":1`, `"Flags":"1"`, "has other bits"},
		{`"HostComputeNetwork":"c0ffee00-abcd-4ef0-8abc-000000000001",`, "", "HostComputeNetwork is missing"},
		{"c0ffee00-abcd-", "c0ffee00abcd", "is no GUID"},
		{`[{"IpAddress":"10.180.1.7"}]`, `[]`, "is no list of 1 or more"},
		{"10.180.1.7", "10.180.1.700", "is no address"},
		{"192.168.0.3", "", "is no address"},
		{`"Type":"ProviderAddress"`, `"Type":"PA"`, "PA is not ProviderAddress"},
		{`,"SchemaVersion":{"Major":2,"Minor":0}`, "", "SchemaVersion is missing"},
		{`"Major":2`, `"Major":1`, "is no number from 2"},
		{`"Dns":{}`, `"Dns":{"Suffix":"cluster.local"}`, "Suffix is no field"},
	})
	refuses(t, "HcnCreateLoadBalancer", goodBalancer, [][3]string{
		{`"FrontendVIPs"`, `"FrontendVips"`, "FrontendVips is no field"},
		{"1.1.1.3", "nowhere", "is no address"},
		{`"Protocol":6`, `"Protocol":132`, "is none of"},
		{`"Protocol":6,`, "", "Protocol is missing"},
		{`"DistributionType":2`, `"DistributionType":3`, "is none of"},
		{`"Flags":8`, `"Flags":32`, "has other bits"},
		{`"Flags":1}`, `"Flags":4}`, "has other bits"},
		{`"InternalPort":8080`, `"InternalPort":0`, "is no number from 1"},
		{`"ExternalPort":80`, `"ExternalPort":65536`, "to 65535"},
		{`["c0ffee00-abcd-4ef0-8abc-000000000002"]`, `[]`, "is no list of 1 or more"},
		{`"PortMappings"`, `"Ports"`, "PortMappings is missing"},
	})
}

// refuses verifies the errors of a document after edits: each is a text, the one in its place, and a part of the error.
func refuses(t *testing.T, call, good string, edits [][3]string) {
	t.Helper()
	for _, e := range edits {
		doc := strings.Replace(good, e[0], e[1], 1)
		if err := checkDocument(call, doc); doc == good || err == nil || !strings.Contains(err.Error(), e[2]) {
			t.Errorf("%s instead of %s: %v, want %q", e[1], e[0], err, e[2])
		}
	}
}
