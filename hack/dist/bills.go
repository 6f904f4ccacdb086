package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// part is something that a release contains: a Go module, or a Debian package of the image for mode iptables.
type part struct {
	name, version string
	purl          string // https://github.com/package-url/purl-spec
	licence       string // an SPDX expression; empty if the copyright file of the package has it
	sha256        string // of a Debian package
}

// debianPackages returns the packages that a file pins with SHA-256 and path.
func debianPackages(name string) ([]part, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var parts []part
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		sum, pool, _ := strings.Cut(strings.TrimSpace(line), "  ")
		words := strings.Split(strings.TrimSuffix(path.Base(pool), ".deb"), "_")
		if len(words) != 3 {
			return nil, fmt.Errorf("%s: %q: want NAME_VERSION_ARCHITECTURE.deb", name, path.Base(pool))
		}
		parts = append(parts, part{
			name: words[0], version: words[1], sha256: sum,
			purl: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=bookworm",
				words[0], strings.ReplaceAll(words[1], "+", "%2B"), words[2]),
		})
	}
	return parts, nil
}

func goParts(modules []module) (parts []part) {
	for _, m := range modules {
		parts = append(parts, part{
			name: m.path, version: m.version, purl: "pkg:golang/" + m.path + "@" + m.version, licence: m.licence,
		})
	}
	return parts
}

// addBills adds the bills of materials, as SPDX 2.3 and CycloneDX 1.6: of the programs and the image, and of the
// image for mode iptables.
func addBills(o options, made map[string][]byte, modules []module, debian []part) error {
	plain := goParts(modules)
	for suffix, parts := range map[string][]part{"": plain, "_iptables": append(slices.Clip(plain), debian...)} {
		name := "sluice_" + o.version + suffix
		var out bytes.Buffer
		if err := spdxjson.Write(spdxOf(o, name, parts), &out, spdxjson.Indent(" ")); err != nil {
			return err
		}
		made[name+".spdx.json"] = bytes.Clone(out.Bytes())
		out.Reset()
		encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true)
		if err := encoder.EncodeVersion(cyclonedxOf(o, parts), cyclonedx.SpecVersion1_6); err != nil {
			return err
		}
		made[name+".cdx.json"] = out.Bytes()
	}
	return nil
}

// sluice is the program itself.
func sluice(o options) part {
	return part{
		name: "github.com/sluice-proxy/sluice", version: o.version, licence: "Apache-2.0",
		purl: "pkg:golang/github.com/sluice-proxy/sluice@" + o.version,
	}
}

func spdxOf(o options, name string, parts []part) *spdx.Document {
	d := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: name,
		DocumentNamespace: "https://github.com/sluice-proxy/sluice/releases/" + o.version + "/" + name,
		CreationInfo: &spdx.CreationInfo{
			Created: o.created.Format(time.RFC3339), Creators: []common.Creator{{CreatorType: "Tool", Creator: "sluice-dist"}},
		},
	}
	add := func(p part) common.DocElementID {
		id := common.ElementID(regexp.MustCompile(`[^a-zA-Z0-9.]+`).ReplaceAllString(strings.TrimPrefix(p.purl, "pkg:"), "-"))
		licence := p.licence
		if licence == "" {
			licence = "NOASSERTION"
		}
		described := &spdx.Package{
			PackageName: p.name, PackageSPDXIdentifier: id, PackageVersion: p.version, PackageDownloadLocation: "NOASSERTION",
			PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: licence, PackageCopyrightText: "NOASSERTION",
			PackageExternalReferences: []*spdx.PackageExternalReference{
				{Category: "PACKAGE-MANAGER", RefType: "purl", Locator: p.purl},
			},
		}
		if p.sha256 != "" {
			described.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: p.sha256}}
		}
		d.Packages = append(d.Packages, described)
		return common.MakeDocElementID("", string(id))
	}
	root := add(sluice(o))
	d.Relationships = []*spdx.Relationship{
		{RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: root, Relationship: "DESCRIBES"},
	}
	for _, p := range parts {
		d.Relationships = append(d.Relationships, &spdx.Relationship{RefA: root, RefB: add(p), Relationship: "CONTAINS"})
	}
	return d
}

func cyclonedxOf(o options, parts []part) *cyclonedx.BOM {
	component := func(kind cyclonedx.ComponentType, p part) cyclonedx.Component {
		c := cyclonedx.Component{Type: kind, Name: p.name, Version: p.version, PackageURL: p.purl, BOMRef: p.purl}
		if p.licence != "" {
			c.Licenses = &cyclonedx.Licenses{{Expression: p.licence}}
		}
		if p.sha256 != "" {
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: p.sha256}}
		}
		return c
	}
	root := component(cyclonedx.ComponentTypeApplication, sluice(o))
	var components []cyclonedx.Component
	var refs []string
	for _, p := range parts {
		components = append(components, component(cyclonedx.ComponentTypeLibrary, p))
		refs = append(refs, p.purl)
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serial(root, refs)
	bom.Metadata = &cyclonedx.Metadata{Timestamp: o.created.Format(time.RFC3339), Component: &root}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: root.BOMRef, Dependencies: &refs}}
	return bom
}

// serial returns a UUID (RFC 9562, version 8) that depends on the content only.
func serial(root cyclonedx.Component, refs []string) string {
	sum := sha256.Sum256([]byte(root.BOMRef + "\n" + strings.Join(refs, "\n")))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}
