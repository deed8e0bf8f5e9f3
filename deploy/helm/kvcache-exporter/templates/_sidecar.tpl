{{/*
For the charts of engines, with this one as a dependency. The argument is this chart's values:

  metadata:
    labels:
      kvcache-exporter: sidecar        # or whatever podMonitor.podLabels says
  spec:
    shareProcessNamespace: true        # the engine's flags are read from /proc
    initContainers:
      {{- include "kvcache-exporter.sidecar" (index .Values "kvcache-exporter") | nindent 6 }}
    volumes:
      {{- include "kvcache-exporter.volumes" (index .Values "kvcache-exporter") | nindent 6 }}

No probe: a sidecar's readiness is the whole pod's, and an exporter must not take an engine out of its Service.
*/}}
{{- define "kvcache-exporter.sidecar" -}}
- name: kvcache-exporter
  image: {{ include "kvcache-exporter.image" . | quote }}
  imagePullPolicy: {{ .image.pullPolicy }}
  restartPolicy: Always
  args:
    - serve
    - --target={{ .sidecar.target }}
    - --log-format=json
    {{- range .sidecar.args }}
    - {{ . | quote }}
    {{- end }}
  ports:
    - name: kvcache
      containerPort: 9844
  {{- if or .sidecar.models.hfHome .sidecar.env }}
  env:
    {{- with .sidecar.models.hfHome }}
    - name: HF_HOME
      value: {{ . | quote }}
    {{- end }}
    {{- with .sidecar.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  volumeMounts:
    - name: kvcache-exporter-cache
      mountPath: /var/cache/kvcache-exporter
    {{- with .sidecar.models }}
    {{- if .volume }}
    - name: {{ .volume }}
      mountPath: {{ .mountPath }}
      readOnly: true
    {{- else if .hfHome }}
    {{- fail "sidecar.models.hfHome lies in no volume: set sidecar.models.volume" }}
    {{- end }}
    {{- end }}
  resources:
    {{- toYaml .sidecar.resources | nindent 4 }}
  securityContext:
    {{- include "kvcache-exporter.securityContext" . | nindent 4 }}
{{- end }}

{{- define "kvcache-exporter.volumes" -}}
- name: kvcache-exporter-cache
  emptyDir:
    sizeLimit: 64Mi
{{- end }}
