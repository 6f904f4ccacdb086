{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/component: proxy
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sluice.mode" -}}
{{ dig "mode" "" (.Values.config | default dict) }}
{{- end }}

{{- /* Not empty in modes with rules of iptables, which need programs, and rights for them. */ -}}
{{- define "sluice.iptables" -}}
{{ if has (include "sluice.mode" .) (list "iptables" "userspace") }}yes{{ end }}
{{- end }}

{{- /* Not empty in mode ebpf, which needs rights, and file systems of the host. */ -}}
{{- define "sluice.ebpf" -}}
{{ if eq (include "sluice.mode" .) "ebpf" }}yes{{ end }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ if include "sluice.iptables" . }}-iptables{{ end }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "sluice.configMap" -}}
{{ .Values.existingConfigMap | default "sluice" }}
{{- end }}

{{- /* The configuration as the values have it, with what other values decide. */ -}}
{{- define "sluice.config" -}}
{{- $zero := dict "maxPerCore" 0 "min" 0 "tcpEstablishedTimeout" "0s" "tcpCloseWaitTimeout" "0s" -}}
{{- $conntrack := ternary .Values.sysctls.conntrack $zero .Values.sysctls.enabled -}}
{{- $metrics := ternary "127.0.0.1:10249" "0.0.0.0:10249" (eq .Values.metrics.scrape "none") -}}
{{- $computed := dict "conntrack" $conntrack "metricsBindAddress" $metrics -}}
{{- if and (include "sluice.iptables" .) (not .Values.sysctls.enabled) -}}
{{- $_ := set $computed "iptables" (dict "localhostNodePorts" false) -}}
{{- end -}}
{{- toYaml (merge (deepCopy (.Values.config | default dict)) $computed) -}}
{{- end }}

{{- /* The port of an address such as 0.0.0.0:10256 or [::1]:10256; that of the second argument if it names none. */ -}}
{{- define "sluice.port" -}}
{{- $address := index . 0 | default "" -}}
{{ if regexMatch "^([^:]*|\\[.*\\]):[0-9]+$" $address }}{{ regexFind "[0-9]+$" $address }}{{ else }}{{ index . 1 }}{{ end }}
{{- end }}

{{- define "sluice.healthzAddress" -}}
{{ dig "healthzBindAddress" "" (.Values.config | default dict) }}
{{- end }}

{{- define "sluice.metricsAddress" -}}
{{ dig "metricsBindAddress" "" (.Values.config | default dict) }}
{{- end }}

{{- /* The address of probes; empty: that of the pod, which is the node's. */ -}}
{{- define "sluice.probeHost" -}}
{{- $host := include "sluice.healthzAddress" . | trimPrefix "[" | regexFind "^([0-9.]+|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)" -}}
{{ if not (has $host (list "0.0.0.0" "::")) }}{{ $host }}{{ end }}
{{- end }}

{{- define "sluice.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
# Where the API server is, in place of its Service: Sluice cannot depend on what
# it is to provide.
- name: KUBERNETES_SERVICE_HOST
  valueFrom:
    configMapKeyRef:
      name: sluice-apiserver
      key: host
- name: KUBERNETES_SERVICE_PORT
  valueFrom:
    configMapKeyRef:
      name: sluice-apiserver
      key: port
{{- end }}
